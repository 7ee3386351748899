//! Instruction sets: what the machine and its operating system allow, and what the caller asked for.

/// An instruction set for which kernels are written. Ordered: a later one includes the earlier ones of its family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust: runs anywhere and defines the bits.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 (F, BW, VL, VNNI).
    Avx512Vnni,
}

impl Isa {
    /// All, with the names used on the command line.
    pub const ALL: [(&'static str, Isa); 3] = [("scalar", Isa::Scalar), ("avx2", Isa::Avx2), ("avx512vnni", Isa::Avx512Vnni)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Isa::ALL.iter().find(|&&(_, isa)| isa == self).map_or("", |(name, _)| name)
    }

    /// The instruction set of that name.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.iter().find(|(n, _)| *n == name).map(|&(_, isa)| isa)
    }

    /// Whether its kernels may run here. The standard library's detection asks XCR0 too, so that a register state which
    /// the operating system doesn't save counts as absent.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("fma")
                    && std::arch::is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => {
                Isa::Avx2.is_available()
                    && std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("avx512vl")
                    && std::arch::is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512Vnni => false,
        }
    }

    /// Those that are available, best last.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.iter().map(|&(_, isa)| isa).filter(|isa| isa.is_available()).collect()
    }

    /// The best that is available.
    pub fn best() -> Isa {
        Isa::available().last().copied().unwrap_or(Isa::Scalar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_scalar_is_everywhere() {
        for (name, isa) in Isa::ALL {
            assert_eq!(Isa::from_name(name), Some(isa));
            assert_eq!(isa.name(), name);
        }
        assert!(Isa::available().contains(&Isa::Scalar));
        assert_eq!(Isa::from_name("sse9"), None);
    }
}

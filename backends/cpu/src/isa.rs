//! Instruction sets: what the machine and its operating system allow, and what the caller asked for.

/// An instruction set for which kernels are written. Ordered within its family, the best last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust: runs anywhere and defines the bits.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-VNNI, and AVX2. Processors with AVX-512 may lack it.
    AvxVnni,
    /// AVX-512 (F, BW, VL, VNNI).
    Avx512Vnni,
    /// AMX with 8-bit integers, and AVX-512.
    Amx,
    /// NEON, which every 64-bit ARM processor has.
    Neon,
    /// NEON with dot products of bytes (`sdot`).
    NeonDotprod,
    /// NEON with products of matrices of bytes (`smmla`), and dot products.
    NeonI8mm,
}

impl Isa {
    /// All, with the names used on the command line.
    pub const ALL: [(&'static str, Isa); 8] = [
        ("scalar", Isa::Scalar),
        ("avx2", Isa::Avx2),
        ("avxvnni", Isa::AvxVnni),
        ("avx512vnni", Isa::Avx512Vnni),
        ("amx", Isa::Amx),
        ("neon", Isa::Neon),
        ("neon-dotprod", Isa::NeonDotprod),
        ("neon-i8mm", Isa::NeonI8mm),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Isa::ALL.iter().find(|&&(_, isa)| isa == self).map_or("", |(name, _)| name)
    }

    /// The instruction set of that name.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.iter().find(|(n, _)| *n == name).map(|&(_, isa)| isa)
    }

    /// Whether a machine that has it has the other too.
    pub(crate) fn includes(self, other: Isa) -> bool {
        let is_arm = |isa| isa >= Isa::Neon;
        match (self, other) {
            (_, Isa::Scalar) => true,
            (Isa::Avx512Vnni | Isa::Amx, Isa::AvxVnni) => false,
            _ => other <= self && is_arm(self) == is_arm(other),
        }
    }

    /// Whether processor and operating system have it. AMX needs a permission besides: see [`Isa::enable`].
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return x86::has(self, &x86::ThisMachine);
        #[cfg(target_arch = "aarch64")]
        return arm::has(self);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        return self == Isa::Scalar;
    }

    /// Makes it usable by all threads of this process; false where it isn't available or the system refuses. Only AMX has
    /// something to ask for, and keeps it until the process ends.
    pub fn enable(self) -> bool {
        self.is_available() && (self != Isa::Amx || selvedge_core::os::permit_tile_registers())
    }

    /// Those that are available, best last.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.iter().map(|&(_, isa)| isa).filter(|isa| isa.is_available()).collect()
    }

    /// The best that is available and that the system permits.
    pub fn best() -> Isa {
        Isa::available().into_iter().rfind(|isa| isa.enable()).unwrap_or(Isa::Scalar)
    }
}

/// What is to be said of an instruction set that was chosen among the available ones.
pub(crate) fn remark(chosen: Isa, available: &[Isa]) -> Option<String> {
    let best = available.iter().copied().max().unwrap_or(Isa::Scalar);
    if chosen == Isa::Scalar && best == Isa::Scalar {
        return Some("this processor has none of the vector instructions that kernels are written for: results are right, and slow".into());
    }
    (chosen < best).then(|| format!("the system refuses the registers of {}: {} is used", best.name(), chosen.name()))
}

/// Detection on 64-bit ARM: the standard library asks the operating system, which alone may read the registers that tell.
#[cfg(target_arch = "aarch64")]
mod arm {
    use super::Isa;
    use std::arch::is_aarch64_feature_detected;

    /// Whether processor and operating system have it. Kernels read packed weights in the processor's byte order.
    pub(super) fn has(isa: Isa) -> bool {
        let neon = cfg!(target_endian = "little") && is_aarch64_feature_detected!("neon");
        let dotprod = neon && is_aarch64_feature_detected!("dotprod");
        match isa {
            Isa::Scalar => true,
            Isa::Neon => neon,
            Isa::NeonDotprod => dotprod,
            Isa::NeonI8mm => dotprod && is_aarch64_feature_detected!("i8mm"),
            _ => false,
        }
    }
}

/// Detection on x86-64. The standard library's knows no AMX, and can't be shown a machine that isn't there.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Isa;

    /// Registers of the processor that say what it is.
    pub(super) trait Machine {
        /// `cpuid`: eax, ebx, ecx, edx.
        fn cpuid(&self, leaf: u32, subleaf: u32) -> [u32; 4];
        /// The register states that the operating system saves; called only where the processor has `xgetbv`.
        fn xcr0(&self) -> u64;
    }

    /// The machine at hand.
    pub(super) struct ThisMachine;

    impl Machine for ThisMachine {
        fn cpuid(&self, leaf: u32, subleaf: u32) -> [u32; 4] {
            let r = std::arch::x86_64::__cpuid_count(leaf, subleaf);
            [r.eax, r.ebx, r.ecx, r.edx]
        }

        fn xcr0(&self) -> u64 {
            let (low, high): (u32, u32);
            // SAFETY: the trait's rule: called only where OSXSAVE is set, which makes the instruction available.
            unsafe { std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
            u64::from(high) << 32 | u64::from(low)
        }
    }

    /// State components in XCR0 (Intel's manual, volume 1, section 13.1): SSE and AVX; masks and both parts of the 512-bit
    /// registers; tile configuration and tile data.
    const AVX_STATE: u64 = 0b110;
    const AVX512_STATE: u64 = AVX_STATE | 0b111 << 5;
    const TILE_STATE: u64 = 0b11 << 17;

    /// Whether a machine has an instruction set and its system saves the registers.
    pub(super) fn has(isa: Isa, machine: &impl Machine) -> bool {
        let bit = |register: u32, n: u32| register >> n & 1 == 1;
        if isa == Isa::Scalar {
            return true;
        }
        if machine.cpuid(0, 0)[0] < 7 {
            return false;
        }
        let [_, _, ecx1, _] = machine.cpuid(1, 0);
        let [max_subleaf7, ebx7, ecx7, edx7] = machine.cpuid(7, 0);
        // A processor without the subleaf answers with that of another one.
        let avx_vnni = max_subleaf7 >= 1 && bit(machine.cpuid(7, 1)[0], 4);
        // XGETBV itself exists only with OSXSAVE.
        let saved = |state: u64| bit(ecx1, 27) && machine.xcr0() & state == state;
        let (avx, fma, f16c, avx2) = (bit(ecx1, 28), bit(ecx1, 12), bit(ecx1, 29), bit(ebx7, 5));
        let avx2 = avx && fma && f16c && avx2 && saved(AVX_STATE);
        let (f, bw, vl, vnni) = (bit(ebx7, 16), bit(ebx7, 30), bit(ebx7, 31), bit(ecx7, 11));
        let avx512 = avx2 && f && bw && vl && vnni && saved(AVX512_STATE);
        match isa {
            Isa::Scalar => true,
            Isa::Avx2 => avx2,
            Isa::AvxVnni => avx2 && avx_vnni,
            Isa::Avx512Vnni => avx512,
            Isa::Amx => avx512 && bit(edx7, 24) && bit(edx7, 25) && saved(TILE_STATE),
            Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => false,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// A machine made up for the test.
        #[derive(Clone, Copy)]
        struct Fake {
            max_leaf: u32,
            ecx1: u32,
            ebx7: u32,
            ecx7: u32,
            edx7: u32,
            max_subleaf7: u32,
            eax7_1: u32,
            xcr0: u64,
        }

        impl Machine for Fake {
            fn cpuid(&self, leaf: u32, subleaf: u32) -> [u32; 4] {
                match leaf {
                    0 => [self.max_leaf, 0, 0, 0],
                    1 => [0, 0, self.ecx1, 0],
                    7 => {
                        assert!(self.max_leaf >= 7, "leaf 7 is asked for only where it exists");
                        assert!(subleaf <= self.max_subleaf7, "a subleaf is asked for only where it exists");
                        match subleaf {
                            0 => [self.max_subleaf7, self.ebx7, self.ecx7, self.edx7],
                            _ => [self.eax7_1, 0, 0, 0],
                        }
                    }
                    _ => [0; 4],
                }
            }

            fn xcr0(&self) -> u64 {
                assert!(self.ecx1 >> 27 & 1 == 1, "xgetbv without OSXSAVE is an illegal instruction");
                self.xcr0
            }
        }

        /// Everything announced, and everything saved.
        const ALL: Fake = Fake { max_leaf: 0x20, ecx1: !0, ebx7: !0, ecx7: !0, edx7: !0, max_subleaf7: 1, eax7_1: !0, xcr0: !0 };

        fn sets(machine: &Fake) -> Vec<&'static str> {
            Isa::ALL.iter().filter(|&&(_, isa)| has(isa, machine)).map(|&(name, _)| name).collect()
        }

        #[test]
        fn what_the_system_does_not_save_is_absent() {
            assert_eq!(sets(&ALL), ["scalar", "avx2", "avxvnni", "avx512vnni", "amx"]);
            let saved = |xcr0| sets(&Fake { xcr0, ..ALL });
            assert_eq!(saved(0xe7), ["scalar", "avx2", "avxvnni", "avx512vnni"]);
            // Tile data without its configuration, and the other way round.
            assert_eq!(saved(0xe7 | 1 << 18), ["scalar", "avx2", "avxvnni", "avx512vnni"]);
            assert_eq!(saved(0xe7 | 1 << 17), ["scalar", "avx2", "avxvnni", "avx512vnni"]);
            // One part of the 512-bit state is missing.
            for missing in [5, 6, 7] {
                assert_eq!(saved(!(1 << missing)), ["scalar", "avx2", "avxvnni"]);
            }
            assert_eq!(saved(0b11), ["scalar"]);
            assert_eq!(sets(&Fake { ecx1: !(1 << 27), ..ALL }), ["scalar"]);
        }

        #[test]
        fn what_the_processor_lacks_is_absent() {
            assert_eq!(sets(&Fake { max_leaf: 1, ..ALL }), ["scalar"]);
            for bit in [12, 28, 29] {
                assert_eq!(sets(&Fake { ecx1: !(1 << bit), ..ALL }), ["scalar"]);
            }
            assert_eq!(sets(&Fake { ebx7: !(1 << 5), ..ALL }), ["scalar"]);
            for bit in [16, 30, 31] {
                assert_eq!(sets(&Fake { ebx7: !(1 << bit), ..ALL }), ["scalar", "avx2", "avxvnni"]);
            }
            assert_eq!(sets(&Fake { ecx7: !(1 << 11), ..ALL }), ["scalar", "avx2", "avxvnni"]);
            // AVX-512 without AVX-VNNI.
            for machine in [Fake { max_subleaf7: 0, ..ALL }, Fake { eax7_1: !(1 << 4), ..ALL }] {
                assert_eq!(sets(&machine), ["scalar", "avx2", "avx512vnni", "amx"]);
            }
            for bit in [24, 25] {
                assert_eq!(sets(&Fake { edx7: !(1 << bit), ..ALL }), ["scalar", "avx2", "avxvnni", "avx512vnni"]);
            }
        }

        /// Where the standard library knows an instruction set, both agree.
        #[test]
        fn this_machine_is_seen_as_the_standard_library_sees_it() {
            let std_avx2 = std::arch::is_x86_feature_detected!("avx2")
                && std::arch::is_x86_feature_detected!("fma")
                && std::arch::is_x86_feature_detected!("f16c");
            assert_eq!(Isa::Avx2.is_available(), std_avx2);
            let std_avx512 = std_avx2
                && std::arch::is_x86_feature_detected!("avx512bw")
                && std::arch::is_x86_feature_detected!("avx512vl")
                && std::arch::is_x86_feature_detected!("avx512vnni");
            assert_eq!(Isa::Avx512Vnni.is_available(), std_avx512);
            assert_eq!(Isa::AvxVnni.is_available(), std_avx2 && std::arch::is_x86_feature_detected!("avxvnni"));
        }
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
        assert!(Isa::best().enable());
        assert_eq!(remark(Isa::Amx, &[Isa::Scalar, Isa::Avx2, Isa::Avx512Vnni, Isa::Amx]), None);
        let refused = remark(Isa::Avx512Vnni, &[Isa::Scalar, Isa::Avx2, Isa::Avx512Vnni, Isa::Amx]).unwrap();
        assert!(refused.contains("refuses the registers of amx: avx512vnni is used"), "{refused}");
        assert!(remark(Isa::Scalar, &[Isa::Scalar]).unwrap().contains("slow"));
        assert_eq!(Isa::from_name("sse9"), None);
    }
}

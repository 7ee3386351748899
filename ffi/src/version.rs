//! Which library this is.

use std::ffi::c_char;
use std::sync::OnceLock;

/// The version of this interface: it rises with every change that a program built for an older one would notice. Programs
/// built for 0 work with any library that says 0.
#[unsafe(no_mangle)]
pub extern "C" fn slv_abi_version() -> u32 {
    0
}

/// The library's version, as "0.1.0". Never freed.
#[unsafe(no_mangle)]
pub extern "C" fn slv_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// How the library was built, as a JSON object: version, arithmetic, system, backends. Never freed.
#[unsafe(no_mangle)]
pub extern "C" fn slv_build_info() -> *const c_char {
    static INFO: OnceLock<std::ffi::CString> = OnceLock::new();
    let info = INFO.get_or_init(|| {
        let backends: Vec<&str> = selvedge::REGISTRY.iter().map(|row| row.name).collect();
        let info = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "abi": slv_abi_version(),
            "numerics": selvedge::NUMERICS,
            "os": std::env::consts::OS,
            "arch": std::env::consts::ARCH,
            "debug_assertions": cfg!(debug_assertions),
            "backends": backends,
        });
        crate::value::owned_text(&info.to_string())
    });
    info.as_ptr()
}

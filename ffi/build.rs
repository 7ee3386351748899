//! Gives the shared library its name for the loader, so that programs ask for the ABI's version and not for a file.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    match os.as_str() {
        "linux" | "freebsd" => println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libselvedge.so.0"),
        // Android's loader takes no versions.
        "android" => println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libselvedge.so"),
        "macos" | "ios" => println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libselvedge.0.dylib"),
        _ => {}
    }
}

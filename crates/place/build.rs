//! Builds the keeper as a small static program, for this room to carry and to write out when it starts one.
//!
//! A cargo of its own with a target folder of its own, so that neither the outer build's flags nor its lock are in
//! the way; the lock file and the crates are the same, and nothing is fetched.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

#[expect(clippy::disallowed_methods, reason = "a build script starts the compiler")]
fn main() {
    let place = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let keeper = place.join("../keeper");
    for watched in ["src", "Cargo.toml", "../../Cargo.toml", "../../Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", keeper.join(watched).display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(variable("OUT_DIR"));
    let (target, folder) = (variable("TARGET"), out.join("keeper-target"));
    let mut cargo = Command::new(variable("CARGO"));
    // What the outer cargo says to its own compiler (clippy, coverage, wrappers) is not meant for this one.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let foreign = name.starts_with("CARGO_") && name != "CARGO_HOME";
        if foreign
            || matches!(&*name, "RUSTFLAGS" | "RUSTC_WRAPPER" | "RUSTC_WORKSPACE_WRAPPER" | "CLIPPY_ARGS")
        {
            cargo.env_remove(name);
        }
    }
    let status = cargo
        .args([
            "build",
            "--offline",
            "--locked",
            "--profile",
            "keeper",
            "--bin",
            "outlast-keeper",
            "--manifest-path",
        ])
        .arg(keeper.join("Cargo.toml"))
        .arg("--target")
        .arg(&target)
        .arg("--target-dir")
        .arg(&folder)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("the keeper did not build ({status}); its messages are above")),
        Err(error) => fail(&format!("cargo could not be started to build the keeper: {error}")),
    }
    let built = folder.join(Path::new(&target).join("keeper/outlast-keeper"));
    if let Err(error) = std::fs::copy(&built, out.join("outlast-keeper")) {
        fail(&format!("the built keeper {} cannot be read: {error}", built.display()));
    }
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| fail(&format!("{name} is not set; this script is run by cargo")))
}

fn fail(text: &str) -> ! {
    println!("cargo::error={text}");
    std::process::exit(1)
}

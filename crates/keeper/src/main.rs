//! The keeper's program. Everything it does is in the library.

fn main() {
    std::process::exit(keeper::roles::main());
}

//! The binary. What it does is in the library.

fn main() {}

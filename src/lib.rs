//! acquit

pub mod transport;

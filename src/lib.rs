//! acquit

pub mod handlers;

//! acquit

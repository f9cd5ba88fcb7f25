//! The checker: what it refuses.

mod cycle;
mod transfers;
mod violations;

//! The operator table: its facts beside what PyTorch recorded.

mod facts;

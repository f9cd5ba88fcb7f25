//! The operator table: its facts compared with what PyTorch recorded.

mod facts;

//! Steps of several micro-batches, in one graph and in the rows of a pipeline.

mod accumulation;
mod cases;
mod decide;
mod layers;
mod planned;
mod rows;
mod stages;
mod tensors;

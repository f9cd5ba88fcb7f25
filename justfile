# Shortcuts; each is one command that can be typed as well. `just` lists them.

_default:
    @just --list

# everything that a change must pass
ci *steps:
    cargo xtask ci {{steps}}

# all Rust tests
test *arguments:
    cargo test --workspace {{arguments}}

# the rules of the house that no compiler checks
tidy:
    cargo xtask tidy

# formats the Rust code
fmt:
    cargo fmt --all

# the crates' documentation
doc:
    cargo doc --workspace --no-deps

# plans the corpus at many budgets, beside bounds, proven optima and other systems
bench-planner *arguments:
    cargo run --release --package tightfit-bench -- planner {{arguments}}

# hostile input for a target: graph, step, plan, modules, weights, check or execute
fuzz target *arguments:
    cargo run --release --package tightfit-fuzz -- {{target}} {{arguments}}

# times the engine on a step of the corpus
bench-engine step="corpus/steps/gpt-small":
    cargo run --release --package tightfit-bench -- engine {{step}}

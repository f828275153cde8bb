//! DSL directories and datasets.

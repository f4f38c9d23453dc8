//! What holds for every input.

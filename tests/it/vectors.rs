//! The protocol crate answers every vector of the spec, judged by the suite that shares no code
//! with it.

use std::{collections::BTreeMap, sync::Arc};

use plugbay_tck::{
    process::Program,
    vectors::{Status, all, ask},
};

#[test]
fn the_protocol_reads_every_vector_as_the_suite_says() {
    let argv = [env!("CARGO_BIN_EXE_plugbay-vectors").to_owned()];
    let program = Program::find(&argv, BTreeMap::new()).unwrap();
    let vectors = all();
    let outcomes = ask(&program, &vectors, 3.0, &Arc::default()).unwrap();
    let bad: Vec<_> = outcomes.iter().filter(|it| it.status != Status::Pass).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(outcomes.len() > 180, "{}", outcomes.len());
}

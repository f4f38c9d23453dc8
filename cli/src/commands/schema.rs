//! `plugbay schema`: what editors need to know about the manifests.

use plugbay_supervisor::manifest::schema as of;

use crate::{
    args::{Schema, SchemaOf},
    exit::Exit,
    render::Screen,
    trouble::Outcome,
};

pub(super) fn schema(args: &Schema, screen: &Screen) -> Outcome {
    let schema = match args.file {
        SchemaOf::Plugin => of::plugin(),
        SchemaOf::Host => of::host(),
    };
    screen.json(&schema).map(|()| Exit::Fine)
}

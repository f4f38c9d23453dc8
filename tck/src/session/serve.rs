//! The suite as host: what it answers to the calls of a fixture.

use crate::{
    codec::{CANCEL, END, Frame},
    map,
    session::{Got, Session},
    value::Value,
};

impl Session {
    /// Answers as [R-SC-06] and contract tck say. `host.tck.wait` stays open until the
    /// check answers it or the plugin cancels.
    pub(crate) fn serve_frame(&mut self, got: &Got) {
        if got.kind == CANCEL {
            if self.waits.remove(&got.id) && self.monitor.is_reverse_open(got.id) {
                self.refuse(got.id, map! {"code": "cancelled", "retry": "no"});
            }
            return;
        }
        let method = got.head.str("method").unwrap_or("").to_owned();
        let parent = got.head.int("parent").and_then(|id| u32::try_from(id).ok());
        if !self.monitor.covers(&method, got.value().str("name"), parent) {
            let err =
                map! {"code": "permission_denied", "reason": "pb.scope_denied", "retry": "no"};
            return self.refuse(got.id, err);
        }
        match method.as_str() {
            "host.tck.echo" | "host.tck.named" => {
                self.send(&Frame::new(END, got.id, &Value::map(), got.body.clone()));
            }
            "host.tck.deny" => {
                let deny = self.deny.clone();
                self.refuse(got.id, deny);
            }
            "host.tck.wait" => {
                self.waits.insert(got.id);
            }
            _ => {
                let err =
                    map! {"code": "unimplemented", "reason": "pb.unknown_method", "retry": "no"};
                self.refuse(got.id, err);
            }
        }
    }
}

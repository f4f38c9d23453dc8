//! A Rust function as a registry entry beside the plugins' tools.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use serde_json::Value;

use crate::{
    call::Output,
    plan::{Approval, Effect, ToolPlan},
};

/// What a local tool gives back: its output, or one sentence on why the work failed.
pub type LocalResult = Result<Output, String>;

type Run = dyn Fn(Value) -> Pin<Box<dyn Future<Output = LocalResult> + Send>> + Send + Sync;

/// A tool that is a function in this process. It is listed, checked and called
/// like a plugin's; its name is protected: no plugin can take it.
///
/// ```
/// use plugbay_supervisor::{Effect, LocalTool, Output};
/// use serde_json::json;
///
/// let schema = json!({
///     "type": "object",
///     "properties": { "a": { "type": "integer" }, "b": { "type": "integer" } },
///     "required": ["a", "b"],
/// });
/// let add = LocalTool::new("add", "Adds two numbers.", schema, async |args| {
///     let sum = args["a"].as_i64().unwrap_or(0) + args["b"].as_i64().unwrap_or(0);
///     Ok(Output::text_of(sum.to_string()))
/// })
/// .effect(Effect::Read);
/// ```
#[derive(Clone)]
pub struct LocalTool {
    pub(crate) tool: ToolPlan,
    pub(crate) approval: Option<Approval>,
    pub(crate) run: Arc<Run>,
}

impl LocalTool {
    /// A tool with effect `write` until [`Self::effect`] says otherwise.
    pub fn new<F>(
        name: impl Into<String>,
        description: impl Into<String>,
        input_schema: Value,
        run: impl Fn(Value) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = LocalResult> + Send + 'static,
    {
        let tool = ToolPlan {
            name: name.into(),
            description: description.into(),
            input_schema,
            output_schema: None,
            effect: Effect::Write,
            idempotent: false,
        };
        Self { tool, approval: None, run: Arc::new(move |args| Box::pin(run(args))) }
    }

    /// Says who decides on calls. Otherwise the default rule for its effect does:
    /// reading is allowed, writing needs a yes.
    #[must_use]
    pub fn approval(mut self, approval: Approval) -> Self {
        self.approval = Some(approval);
        self
    }

    /// Says what a call does to the world.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Self {
        self.tool.effect = effect;
        self
    }
}

impl fmt::Debug for LocalTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalTool").field("name", &self.tool.name).finish_non_exhaustive()
    }
}

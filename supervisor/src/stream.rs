//! A call of any contract's method: items each way, and a result.
//!
//! Tools have [`Registry::call`](crate::Registry::call), which knows their arguments. This is
//! the door behind which everything else is built: a model, a memory, a policy, a sandbox, an
//! agent runtime. Bodies are MessagePack and pass undecoded.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::Stream;
use plugbay_protocol::{CallId, Misuse};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::{Notify, mpsc};

use crate::{
    body,
    call::Terms,
    errand::{Budgets, failed},
    error::CallError,
    fact::Seen,
    link::{Link, Pending, Progress},
    registry::Cell,
};

/// One call of a method of one plugin.
///
/// ```
/// use plugbay_supervisor::Request;
/// use serde_json::json;
///
/// let request = Request::new("writer", "model.generate", &json!({ "model": "small" }));
/// ```
#[derive(Clone)]
pub struct Request {
    pub(crate) plugin: String,
    pub(crate) method: String,
    pub(crate) body: Bytes,
    pub(crate) terms: Terms,
    pub(crate) input: bool,
}

impl Request {
    /// Calls a method of the plugin that the operator gave this name. The arguments become
    /// a MessagePack map; what cannot be encoded becomes no arguments, which the plugin
    /// refuses.
    pub fn new(
        plugin: impl Into<String>,
        method: impl Into<String>,
        args: &impl Serialize,
    ) -> Self {
        Self::encoded(plugin, method, body::encode(args))
    }

    /// The same with arguments that are MessagePack already, or empty.
    pub fn encoded(
        plugin: impl Into<String>,
        method: impl Into<String>,
        body: impl Into<Bytes>,
    ) -> Self {
        Self {
            plugin: plugin.into(),
            method: method.into(),
            body: body.into(),
            terms: Terms::default(),
            input: false,
        }
    }

    /// Bounds the whole call, waiting included. Otherwise the plugin's
    /// `timeouts.call_max` does.
    #[must_use]
    pub fn deadline(mut self, budget: Duration) -> Self {
        self.terms.deadline = Some(budget);
        self
    }

    /// Bounds the plugin's silence while it could speak. Otherwise the plugin's
    /// `timeouts.call` does.
    #[must_use]
    pub fn idle(mut self, budget: Duration) -> Self {
        self.terms.idle = Some(budget);
        self
    }

    /// Leaves the plugin, of all that it was granted, only these scopes while it works on
    /// this call. \[R-SC-08\]
    #[must_use]
    pub fn scopes(mut self, scopes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.terms.narrow(scopes);
        self
    }

    /// Says that items follow, through [`Reply::input`].
    #[must_use]
    pub fn with_input(mut self) -> Self {
        self.input = true;
        self
    }

    /// Is told about progress. It runs on the connection's task and must not block.
    #[must_use]
    pub fn on_progress(mut self, told: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.terms.on_progress = Some(Arc::new(told));
        self
    }

    /// What callers are allowed by: `plugin/method`.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.plugin, self.method)
    }
}

impl fmt::Debug for Request {
    /// Without the arguments, which are the tenant's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Request").field(&self.name()).finish()
    }
}

/// The connection's side of the items of one call.
#[derive(Clone)]
pub(crate) struct Outlet {
    /// Bounded by the credit that we give: a window and one item.
    pub(crate) items: mpsc::UnboundedSender<(Bytes, u32)>,
    /// Told when there is credit again for the caller's items.
    pub(crate) credit: Arc<Notify>,
}

impl Outlet {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<(Bytes, u32)>) {
        let (items, inlet) = mpsc::unbounded_channel();
        (Self { items, credit: Arc::default() }, inlet)
    }
}

/// A call that is running: first its items, then its result.
///
/// The plugin runs ahead of whoever reads by no more than a window and one item.
/// Dropping it cancels the call.
pub struct Reply {
    opened: Opened,
    /// What the item before costs, which is paid when the next is asked for.
    unpaid: Option<u32>,
    seen: Seen,
}

/// A request that is on its way.
pub(crate) struct Opened {
    pub(crate) cell: Arc<Cell>,
    pub(crate) budgets: Budgets,
    /// The start of the process that has it.
    pub(crate) run: u64,
    pub(crate) pending: Pending,
    pub(crate) items: mpsc::UnboundedReceiver<(Bytes, u32)>,
    pub(crate) input: Option<Input>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("plugin", &self.opened.cell.name).finish_non_exhaustive()
    }
}

impl Reply {
    pub(crate) fn new(opened: Opened, seen: Seen) -> Self {
        seen.started();
        Self { opened, unpaid: None, seen }
    }

    /// The end for items of the caller's, once, if the request was made
    /// [`with_input`](Request::with_input).
    pub fn input(&mut self) -> Option<Input> {
        self.opened.input.take()
    }

    /// Waits for the next item; `None` once there are no more. Cancel safe.
    pub async fn next(&mut self) -> Option<Item> {
        std::future::poll_fn(|cx| self.poll_item(cx)).await
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        if let Some(size) = self.unpaid.take() {
            self.opened.pending.taken(size);
        }
        self.opened.items.poll_recv(cx).map(|item| {
            let (body, size) = item?;
            self.unpaid = Some(size);
            Some(Item(body))
        })
    }

    /// Waits for the result. Items that were not read are dropped.
    ///
    /// # Errors
    /// [`CallError`] says what happened, whether it ran, and what to do next.
    pub async fn result(mut self) -> Result<Item, CallError> {
        while self.next().await.is_some() {}
        let Opened { cell, budgets, run, pending, .. } = self.opened;
        let result = match pending.await {
            Ok(body) => budgets.bounds.check_result(&cell, &body).map(|()| Item(body)),
            Err(failure) => Err(failed(&cell, &budgets, run, failure).await),
        };
        self.seen.end(result.as_ref().map(|_| "ok"));
        result
    }
}

impl Stream for Reply {
    type Item = Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        self.get_mut().poll_item(cx)
    }
}

/// One element of a stream, or a result: MessagePack, not yet decoded.
#[derive(Clone, PartialEq, Eq)]
pub struct Item(pub Bytes);

impl Item {
    /// Decodes it. An empty one is nil.
    ///
    /// # Errors
    /// It is not MessagePack as the spec bounds it, or of another shape. Nothing of it is
    /// quoted.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, String> {
        body::decode(&self.0)
    }
}

impl fmt::Debug for Item {
    /// Without the bytes, which are the tenant's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Item({} bytes)", self.0.len())
    }
}

/// Sends the caller's items. Dropping it ends the input.
pub struct Input {
    link: Link,
    id: CallId,
    credit: Arc<Notify>,
}

impl Input {
    /// The end for the items of a call that was made with an outlet.
    pub(crate) fn new(pending: &Pending, outlet: &Outlet) -> Self {
        let (link, id) = pending.place();
        Self { link, id, credit: Arc::clone(&outlet.credit) }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Input")
    }
}

/// Why an item was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The call is over; its result says why.
    #[error("the call is over")]
    Over,
    /// It makes a frame larger than the plugin accepts.
    #[error("the item takes {size} bytes and the plugin accepts {max}")]
    TooLarge {
        /// Of the frame, in bytes.
        size: usize,
        /// What the plugin accepts, in bytes.
        max: u32,
    },
}

impl Input {
    /// Sends one item, as soon as the plugin has given credit for it.
    ///
    /// # Errors
    /// [`NotTaken`].
    pub async fn send(&mut self, item: &impl Serialize) -> Result<(), NotTaken> {
        self.send_encoded(body::encode(item)).await
    }

    /// The same with an item that is MessagePack already.
    ///
    /// # Errors
    /// [`NotTaken`].
    pub async fn send_encoded(&mut self, item: Bytes) -> Result<(), NotTaken> {
        loop {
            match self.link.item(self.id, &item) {
                Ok(()) => return Ok(()),
                // It keeps a permit, so credit that comes in between is not missed.
                Err(Misuse::NoCredit) => self.credit.notified().await,
                Err(Misuse::TooLarge { size, max }) => {
                    return Err(NotTaken::TooLarge { size, max });
                }
                Err(_) => return Err(NotTaken::Over),
            }
        }
    }

    /// Says that there are no more. So does dropping it.
    pub fn end(self) {}
}

impl Drop for Input {
    fn drop(&mut self) {
        self.link.end_input(self.id);
    }
}

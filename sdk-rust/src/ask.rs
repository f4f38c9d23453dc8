//! Calls to the host: what a plugin may ask of whoever runs it, within its scopes.

use std::{fmt, marker::PhantomData, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use plugbay_protocol::{
    Budget, CallId, Code, Details, Failure, Fault, Misuse, Outgoing, Retry, body_fields, scope,
};
use serde::de::DeserializeOwned;

use crate::{
    Error, FromBody, IntoBody, body,
    call::{Call, Cause},
    error::show,
    wire::Wire,
};

/// A call to the host that has not been made yet: await it, or set budgets first.
///
/// Dropping it while it runs cancels it; so does the cancel of the call it serves. It waits
/// for a slot while as many calls to the host are open as the host accepts. Its deadline
/// is never above that of the call it serves. \[R-RV-05\] \[R-RV-07\]
#[must_use = "a call is made when it is awaited"]
pub struct HostCall<R> {
    from: Caller,
    method: String,
    body: Result<Bytes, String>,
    deadline: Option<Duration>,
    idle: Option<Duration>,
    result: PhantomData<fn() -> R>,
}

/// On whose behalf the host is called.
#[derive(Clone)]
pub(crate) enum Caller {
    /// For a call of the host's.
    Call(Arc<Call>),
    /// For a step of the lifecycle.
    Step(Arc<Wire>, CallId),
    /// For nobody: background work.
    Nobody(Arc<Wire>),
}

impl Caller {
    fn wire(&self) -> &Arc<Wire> {
        match self {
            Self::Call(call) => &call.wire,
            Self::Step(wire, _) | Self::Nobody(wire) => wire,
        }
    }

    fn parent(&self) -> Option<CallId> {
        match self {
            Self::Call(call) => Some(call.id),
            Self::Step(_, id) => Some(*id),
            Self::Nobody(_) => None,
        }
    }

    /// Waits until nobody wants it any more.
    async fn given_up(&self) -> Cause {
        match self {
            Self::Call(call) => call.given_up().await,
            // The conversation cancels what serves a step, and so ends it.
            Self::Step(..) | Self::Nobody(_) => std::future::pending().await,
        }
    }

    pub(crate) fn ask<R>(&self, method: &str, args: impl IntoBody) -> HostCall<R> {
        HostCall {
            from: self.clone(),
            method: method.to_owned(),
            body: args.into_body(),
            deadline: None,
            idle: None,
            result: PhantomData,
        }
    }
}

impl<R> HostCall<R> {
    /// Its total budget.
    pub fn deadline(mut self, budget: Duration) -> Self {
        self.deadline = Some(budget);
        self
    }

    /// The longest silence. What waits for the plugin itself does not count. \[R-TO-17\]
    pub fn idle(mut self, budget: Duration) -> Self {
        self.idle = Some(budget);
        self
    }

    async fn make(self) -> Result<Bytes, HostError> {
        let Self { from, method, body, deadline, idle, .. } = self;
        let body = body.map_err(|why| {
            HostError::new(Code::InvalidArgument, format!("the arguments: {why}"))
        })?;
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let call = Outgoing {
            method: &method,
            deadline: deadline.map(ms),
            idle: idle.map(ms),
            parent: from.parent(),
            body,
            ..Outgoing::default()
        };
        let asked = async {
            let mut asking = from.wire().ask(&call).await.map_err(HostError::misuse)?;
            match asking.outcome().await {
                Some(Ok(result)) => Ok(result),
                Some(Err(failure)) => Err(HostError::failure(failure)),
                None => Err(HostError::given_up(Cause::Cancelled)),
            }
        };
        tokio::select! {
            biased;
            cause = from.given_up() => {
                // An async function is dropped here. Only what blocks goes on, with the error.
                tokio::task::yield_now().await;
                Err(HostError::given_up(cause))
            }
            outcome = asked => outcome,
        }
    }
}

impl<R: FromBody + 'static> IntoFuture for HostCall<R> {
    type Output = Result<R, HostError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            // [R-ER-15]
            let unread = |why| HostError::new(Code::Internal, format!("the host's result: {why}"));
            R::from_body(self.make().await?).map_err(unread)
        })
    }
}

impl<R> fmt::Debug for HostCall<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCall").field("method", &self.method).finish_non_exhaustive()
    }
}

/// Whether these scopes have the method, for whatever name. \[R-SC-07\]
pub(crate) fn is_granted(grant: &[String], details: Option<&Details>, method: &str) -> bool {
    let narrowed = details.and_then(|details| details.scopes.as_deref());
    scope::name(grant, method) && narrowed.is_none_or(|scopes| scope::name(scopes, method))
}

/// Why a call to the host has no result.
///
/// As any error it becomes, by `?`, a text that the model reads. Where the call it served
/// should fail in the same way: `.map_err(HostError::pass_on)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostError {
    /// One of the closed set.
    pub code: Code,
    /// The exact condition, such as `pb.scope_denied`.
    pub reason: Option<String>,
    /// Whether the same call may be made again.
    pub retry: Retry,
    /// How long to wait first.
    pub after: Option<Duration>,
    /// Words.
    pub message: Option<String>,
    pub(crate) data: Option<body::Raw>,
}

impl HostError {
    fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: None,
            retry: Retry::No,
            after: None,
            message: Some(message.into()),
            data: None,
        }
    }

    /// What the host says about it for programs.
    ///
    /// # Errors
    /// It is of another type.
    pub fn data<T: DeserializeOwned + 'static>(&self) -> Result<Option<T>, Error> {
        let read = |data: &body::Raw| T::from_body(data.0.clone()).map_err(Error::internal);
        self.data.as_ref().map(read).transpose()
    }

    /// The error with which the call fails that this one served: the same code, reason,
    /// words and data. As that one has run, it is never `safe` to repeat. \[R-ER-07\]
    pub fn pass_on(self) -> Error {
        let retry = if self.retry == Retry::Safe { Retry::Maybe } else { self.retry };
        Error::of_host(self, retry)
    }

    fn failure(failure: Failure) -> Self {
        match failure {
            Failure::Fault(fault) => Self::fault(fault),
            Failure::Expired { budget, ms, sent } => {
                let what = match budget {
                    Budget::Deadline => "its budget",
                    Budget::Idle => "its budget for silence",
                };
                let text = format!("{what} of {ms} ms is spent");
                Self { retry: ran(sent), ..Self::new(Code::DeadlineExceeded, text) }
            }
            Failure::Lost { sent } => {
                Self { retry: ran(sent), ..Self::new(Code::Unavailable, "the host has gone") }
            }
        }
    }

    fn fault(fault: Fault) -> Self {
        let data = body_fields(&fault.body, ["data"]).ok().and_then(|[data]| data);
        Self {
            code: fault.code,
            retry: fault.retry,
            after: fault.after.map(Duration::from_millis),
            data: data.map(|data| body::Raw(fault.body.slice_ref(data))),
            message: fault.text(),
            reason: fault.reason.map(Into::into),
        }
    }

    fn given_up(cause: Cause) -> Self {
        let text = match cause {
            Cause::Shutdown => "the host has gone",
            Cause::Cancelled | Cause::Deadline | Cause::Overdue => "nobody wants it any more",
        };
        Self { retry: Retry::Maybe, ..Self::new(Code::Cancelled, text) }
    }

    /// What was not sent.
    fn misuse(misuse: Misuse) -> Self {
        let (code, reason) = match misuse {
            Misuse::NotGranted => (Code::PermissionDenied, Some("pb.scope_denied")),
            Misuse::NotAgreed(_) => (Code::Unimplemented, None),
            Misuse::TooLarge { .. } => (Code::ResourceExhausted, Some("pb.frame_limit")),
            Misuse::IdsUsedUp => (Code::Unavailable, None),
            _ => (Code::FailedPrecondition, Some("pb.inactive")),
        };
        let reason = reason.map(Into::into);
        Self { reason, ..Self::new(code, misuse.to_string()) }
    }
}

fn ran(sent: bool) -> Retry {
    if sent { Retry::Maybe } else { Retry::Safe }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.code, self.reason.as_deref(), self.message.as_deref())
    }
}

impl std::error::Error for HostError {}

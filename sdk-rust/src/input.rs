//! The items that a caller sends while its call runs.

use std::{
    fmt,
    future::poll_fn,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_core::Stream;

use crate::{Error, FromBody, call::Call};

/// The items of a call's input, in order; a [`Stream`] of them.
///
/// Asking for the next item says that the one before has been used: only then may the
/// caller send as much more. So whoever reads slowly is sent no more than a window ahead.
pub struct Input<T> {
    call: Arc<Call>,
    /// What the last item cost its sender.
    owed: Option<u32>,
    over: bool,
    item: PhantomData<fn() -> T>,
}

impl<T: FromBody> Input<T> {
    pub(crate) fn new(call: Arc<Call>) -> Self {
        Self { call, owed: None, over: false, item: PhantomData }
    }

    /// The next item; `None` once the caller has said that there are no more.
    ///
    /// # Errors
    /// The item is of another type (`invalid_argument`, `pb.bad_body`), or nobody wants
    /// the result any more. Nothing comes after an error.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        let call = Arc::clone(&self.call);
        tokio::select! {
            biased;
            item = poll_fn(|cx| self.poll_item(cx)) => item,
            cause = call.given_up() => {
                self.over = true;
                Err(cause.error())
            }
        }
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<T>, Error>> {
        if let Some(size) = self.owed.take() {
            self.call.wire.taken(self.call.id, size);
        }
        let Some(inbox) = self.call.inbox.as_ref().filter(|_| !self.over) else {
            return Poll::Ready(Ok(None));
        };
        let item = inbox.poll(cx);
        // Only now, as a cancel wakes whoever has asked.
        if let Some(cause) = self.call.cause() {
            self.over = true;
            return Poll::Ready(Err(cause.error()));
        }
        let Some((body, size)) = ready!(item) else {
            self.over = true;
            return Poll::Ready(Ok(None));
        };
        self.owed = Some(size);
        Poll::Ready(match T::from_body(body) {
            Ok(item) => Ok(Some(item)),
            Err(why) => {
                self.over = true;
                Err(Error::invalid(format!("an item: {why}")).because("pb.bad_body"))
            }
        })
    }
}

impl<T: FromBody> Stream for Input<T> {
    type Item = Result<T, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_item(cx).map(Result::transpose)
    }
}

impl<T> fmt::Debug for Input<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("id", &self.call.id).finish_non_exhaustive()
    }
}

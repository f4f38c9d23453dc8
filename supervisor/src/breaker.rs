//! Restart patience: how long to wait after a death, and when to stop trying.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::plan::Restart;

/// Remembers recent deaths.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    deaths: VecDeque<Instant>,
}

impl Breaker {
    /// Records a death. `None` once patience has run out; otherwise how long to
    /// wait before the next start. `luck` is uniform in `0.0..1.0`.
    pub(crate) fn forgive(&mut self, rule: &Restart, now: Instant, luck: f64) -> Option<Duration> {
        self.forget(rule, now);
        self.deaths.push_back(now);
        let deaths = self.deaths();
        if rule.budget < deaths {
            return None;
        }
        let doublings = (deaths - 1).min(31);
        let wait = rule.first.saturating_mul(1 << doublings).min(rule.max);
        let spread = 1.0 + rule.jitter.clamp(0.0, 1.0) * (2.0 * luck - 1.0);
        Some(wait.mul_f64(spread))
    }

    /// Drops what is too old to count.
    fn forget(&mut self, rule: &Restart, now: Instant) {
        self.deaths.retain(|&death| now.saturating_duration_since(death) < rule.within);
    }

    /// Forgets everything: it was healthy for long enough, or the operator says so.
    pub(crate) fn reset(&mut self) {
        self.deaths.clear();
    }

    pub(crate) fn deaths(&self) -> u32 {
        u32::try_from(self.deaths.len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> Restart {
        Restart {
            first: Duration::from_millis(100),
            max: Duration::from_millis(300),
            jitter: 0.5,
            budget: 3,
            within: Duration::from_secs(10),
            ..Restart::default()
        }
    }

    #[tokio::test]
    async fn waits_double_up_to_the_longest_and_then_end() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        let waits = [0.5; 4].map(|luck| breaker.forgive(&rule(), now, luck));
        let ms = |n| Some(Duration::from_millis(n));
        assert_eq!(waits, [ms(100), ms(200), ms(300), None]);
    }

    #[tokio::test]
    async fn jitter_spreads_both_ways() {
        let now = Instant::now();
        let wait = |luck| Breaker::default().forgive(&rule(), now, luck).unwrap().as_millis();
        assert_eq!((wait(0.0), wait(0.5)), (50, 100));
        assert!((145..=150).contains(&wait(0.999)));
    }

    #[tokio::test]
    async fn old_deaths_are_forgotten() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..3 {
            breaker.forgive(&rule(), now, 0.5).unwrap();
        }
        assert!(breaker.forgive(&rule(), now + Duration::from_secs(10), 0.5).is_some());
        assert_eq!(breaker.deaths(), 1);
    }
}

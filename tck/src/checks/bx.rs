pub(super) const CHECKS: &[crate::check::Check] = &[];

//! When a rate is steady.

/// Samples of a window.
pub const WINDOW: usize = 5;
/// Windows that have to agree: with two, a slow decline that pauses would pass.
pub const WINDOWS: usize = 3;
/// How far the mean of a window may be from that of all of them, as a share.
pub const TOLERANCE: f64 = 0.05;

/// The mean of the last [`WINDOWS`] windows of [`WINDOW`] samples each, if the rate is steady: the
/// mean of each window is within [`TOLERANCE`] of it. Single samples may differ: a txg makes them
/// high and low. Samples that are all 0 are not steady.
pub fn steady(samples: &[f64]) -> Option<f64> {
    let last = &samples[samples.len().checked_sub(WINDOW * WINDOWS)?..];
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let all = mean(last);
    let near = |part: &[f64]| (mean(part) - all).abs() <= all * TOLERANCE;
    (all > 0.0 && last.chunks(WINDOW).all(near)).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_is_what_three_windows_agree_on() {
        let of = |f: &dyn Fn(usize) -> f64, n: usize| steady(&(0..n).map(f).collect::<Vec<_>>());
        assert_eq!(of(&|_| 10.0, 14), None, "too few");
        assert_eq!(of(&|_| 10.0, 15), Some(10.0));
        assert_eq!(of(&|_| 0.0, 30), None, "nothing is no rate");
        // Fences of a txg are within a window.
        assert_eq!(of(&|i| if i % 5 == 0 { 50.0 } else { 0.0 }, 40), Some(10.0));
        // A decline of 2 % a sample is 10 % from window to window; one of 0.5 % is none.
        assert_eq!(of(&|i| 100.0 * 0.98f64.powi(i as i32), 40), None);
        assert!(of(&|i| 100.0 * 0.995f64.powi(i as i32), 40).is_some());
        // A step is seen until it has left the windows.
        let step = |i: usize| if i < 20 { 100.0 } else { 50.0 };
        assert_eq!([20, 25, 30, 34, 35].map(|n| of(&step, n).is_some()), [true, false, false, false, true]);
        assert_eq!(of(&|i| if i == 12 { f64::NAN } else { 1.0 }, 20), None);
    }
}

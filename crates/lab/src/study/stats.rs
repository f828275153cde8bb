//! A figure over seeds.

use serde::Serialize;

/// Mean and spread.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Spread {
    /// How many there are.
    pub count: usize,
    /// The mean.
    pub mean: f64,
    /// The standard deviation of a sample; 0 for one value.
    pub deviation: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of these values, in this order; None without any.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let n = values.len();
        if n == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        let square: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
        Some(Spread {
            count: n,
            mean,
            deviation: if n == 1 { 0.0 } else { (square / (n - 1) as f64).sqrt() },
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_spread() {
        assert_eq!(Spread::of(&[]), None);
        let one = Spread { count: 1, mean: 3.0, deviation: 0.0, min: 3.0, max: 3.0 };
        assert_eq!(Spread::of(&[3.0]), Some(one));
        let three = Spread { count: 3, mean: 2.0, deviation: 1.0, min: 1.0, max: 3.0 };
        assert_eq!(Spread::of(&[1.0, 2.0, 3.0]), Some(three));
    }
}

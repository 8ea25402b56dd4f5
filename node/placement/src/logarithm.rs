//! Natural logarithm that gives the same bits on every platform.
//!
//! The `ln` of a platform's mathematics library differs in the last bits between platforms, and one bit may
//! turn an order round. This one uses only `+ - * /` on `f64`, which IEEE 754 rounds in one way.

/// -ln(u) for u = (2 * (hash >> 12) + 1) / 2^53: `hash` read as a uniform number inside (0, 1).
///
/// Always positive and finite, also next to u = 1, where the winners of a rendezvous are.
/// Relative error below 1e-14 (tested against the platform's `ln`).
pub(crate) fn negative_ln_unit(hash: u64) -> f64 {
    // 53 significant bits at most: exact in an f64, and never 0 or 1.
    let odd = ((hash >> 12) << 1) | 1;
    let mut exponent = 63 - odd.leading_zeros();
    // odd = mantissa * 2^exponent, the mantissa in [sqrt(1/2), sqrt(2)): all steps are exact.
    let mut mantissa = odd as f64 / (1_u64 << exponent) as f64;
    if mantissa >= std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    f64::from(53 - exponent) * std::f64::consts::LN_2 - ln_near_one(mantissa)
}

/// Never above [`negative_ln_unit`] of the same hash, and cheap: 1 - u. Near u = 1, where winners are, hardly below it.
pub(crate) fn least_negative_ln_unit(hash: u64) -> f64 {
    /// More than the relative error of the other.
    const BELOW: f64 = 1.0 - 1e-12;
    let odd = ((hash >> 12) << 1) | 1;
    let whole = 1_u64 << 53;
    (whole - odd) as f64 / whole as f64 * BELOW
}

/// ln(m) for m in [sqrt(1/2), sqrt(2)), by the series of the inverse hyperbolic tangent.
///
/// ln(m) = 2 * (s + s^3/3 + s^5/5 + ...) with s = (m - 1) / (m + 1), |s| < 0.172; the first term
/// left out, s^19/19, is below 2e-16.
fn ln_near_one(m: f64) -> f64 {
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for odd in [17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = sum * square + 1.0 / odd;
    }
    2.0 * s * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_true_logarithm() {
        let mut hash = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..100_000 {
            hash = hash.wrapping_mul(0xd129_0d3b_36ea_8d6b).wrapping_add(1);
            let unit = (((hash >> 12) << 1) | 1) as f64 / (1_u64 << 53) as f64;
            let (ours, platform) = (negative_ln_unit(hash), -unit.ln());
            assert!(
                (ours - platform).abs() <= 1e-14 * platform,
                "{hash:#x}: {ours} and {platform}"
            );
            let least = least_negative_ln_unit(hash);
            assert!(
                0.0 < least && least <= ours,
                "{hash:#x}: {least} and {ours}"
            );
        }
    }

    #[test]
    fn is_positive_and_finite_at_both_ends() {
        assert!((negative_ln_unit(0) - 53.0 * std::f64::consts::LN_2).abs() < 1e-12);
        let nearly_one = negative_ln_unit(u64::MAX);
        assert!(nearly_one > 0.0 && nearly_one < 1e-15, "{nearly_one}");
        for hash in [0, u64::MAX] {
            assert!(least_negative_ln_unit(hash) <= negative_ln_unit(hash));
        }
    }

    /// A different bit on some platform is a different order of workers there.
    #[test]
    fn bits_are_pinned() {
        let bits = [0, 1 << 63, 0x0123_4567_89ab_cdef, u64::MAX]
            .map(|hash| negative_ln_unit(hash).to_bits());
        let pinned = [
            0x4042_5e4f_7b27_37fa,
            0x3fe6_2e42_fefa_39ed,
            0x4015_aa16_394d_4834,
            0x3ca0_0000_0000_0000,
        ];
        assert_eq!(bits, pinned, "{bits:#x?}");
    }
}

//! The vector of slices that every send of a driver uses again.

use std::io::IoSlice;

/// Empties the vector and frees it from the lifetime of what it held. It keeps its allocation: the
/// standard library collects in place where the layouts agree.
pub fn recycle<'a>(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'a>> {
    slices.clear();
    slices.into_iter().map(|_| unreachable!("it is empty")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_vector_keeps_its_allocation() {
        let text = String::from("text");
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(64);
        slices.push(IoSlice::new(text.as_bytes()));
        let allocation = slices.as_ptr().addr();
        let recycled: Vec<IoSlice<'static>> = recycle(slices);
        assert_eq!((recycled.as_ptr().addr(), recycled.capacity()), (allocation, 64));
    }
}

//! The vector of slices that every send of a driver uses again.

use std::io::IoSlice;

use super::Service;
use crate::values::ids::ConnId;

/// Gathers the output of a connection without allocating.
#[derive(Default)]
pub struct IoVecs {
    /// Empty between sends; kept for its allocation.
    spare: Vec<IoSlice<'static>>,
}

impl IoVecs {
    /// Calls `send` with the output of a connection. It is empty if there is none.
    pub fn with_outgoing<T>(
        &mut self,
        server: &mut impl Service,
        conn: ConnId,
        send: impl FnOnce(&mut [IoSlice<'_>]) -> T,
    ) -> T {
        let mut slices = recycle(std::mem::take(&mut self.spare));
        server.outgoing(conn, &mut slices);
        let result = send(&mut slices);
        self.spare = recycle(slices);
        result
    }
}

/// Empties the vector and frees it from the lifetime of its slices. It keeps its allocation: the standard library collects
/// in place where the layouts agree.
fn recycle<'a>(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'a>> {
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

//! Reserves in which chance decides. The model accepts any tube: the weights are tested by their effect on many reserves.

use beanring::values::reserve_mode::ReserveMode;

use super::{Conn, Model};

impl Model {
    pub fn set_mode(&mut self, conn: Conn, mode: ReserveMode) {
        self.client(conn).mode = mode;
    }

    /// Reserves the job that the server has drawn, which must be the most urgent one of its tube.
    pub fn draw(&mut self, conn: Conn, id: u64) {
        let at = self.drawable(conn).into_iter().find(|&at| self.jobs[at].id == id);
        self.hand_out(at.unwrap_or_else(|| panic!("client {conn} cannot draw job {id}")), conn);
    }

    /// Reserves the jobs that the server has drawn for a batch of at most this number. There may be fewer only if there is no
    /// other job, or one that does not fit.
    pub fn draw_batch(&mut self, conn: Conn, ids: &[u64], most: usize, fits: impl Fn(u64) -> bool) {
        ids.iter().for_each(|&id| self.draw(conn, id));
        let rest = self.drawable(conn);
        let may_end = rest.is_empty() || rest.iter().any(|&at| !fits(self.jobs[at].id));
        assert!(
            ids.len() == most || ids.len() < most && may_end,
            "client {conn} gets {ids:?} of {most} jobs"
        );
    }

    /// The most urgent ready job of each watched tube that is neither paused nor throttled.
    fn drawable(&self, conn: Conn) -> Vec<usize> {
        let open = self.get(conn).watched.iter().filter(|&&name| !self.is_closed(name));
        open.filter_map(|&name| self.most_urgent(name)).collect()
    }
}

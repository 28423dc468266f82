//! Work of the ranks with the trained model besides its training, such as generation. This crate only forwards the
//! messages.

use super::Ranks;
use super::protocol::{Reply, Request};
use crate::Result;
use kernels::Context;
use model::kept::RolloutActivations;
use model::{GroupId, ModelConfig, ModelView};
use ranks::Message;
use std::path::Path;
use std::sync::Arc;

/// The other ranks, as rank 0 sees them, for work besides training.
#[derive(Clone)]
pub struct OtherRanks(Arc<Ranks>);

impl OtherRanks {
    pub(in crate::trainer) fn of(ranks: Arc<Ranks>) -> OtherRanks {
        OtherRanks(ranks)
    }

    /// The number of ranks, with rank 0.
    pub fn world_size(&self) -> usize {
        self.0.world_size()
    }

    /// Rank 0's part of the threads.
    pub fn context(&self) -> &Context {
        &self.0.ctx
    }

    /// Lets the other ranks read the weights that were published at `trained`, and frozen base weights at `base`, until
    /// they have done the work that is sent to them next.
    pub fn share_weights(&self, trained: &Path, base: Option<&Path>) -> Result<()> {
        self.0.share_weights(trained, base)
    }

    /// Forgets the groups whose activations other ranks [keep](Self::note_kept).
    pub fn forget_kept(&self) {
        self.0.kept().clear();
    }

    /// Notes that `rank` keeps the activations of a group. If the rank also computes the gradient of the group, it uses
    /// the activations in place of a forward pass.
    pub fn note_kept(&self, rank: usize, group: GroupId) {
        self.0.kept().insert(group, rank);
    }

    /// Sends work to `rank`, which does it by [`OtherWork::work`].
    pub fn send(&self, rank: usize, work: Message) -> Result<()> {
        self.0.send(rank, Request::Other(work.text), work.numbers)
    }

    /// The next reply of `rank`, if it has arrived. Fails if some rank has failed or is lost. The calling thread counts
    /// the operations of the rank.
    pub fn try_receive(&self, rank: usize) -> Result<Option<Message>> {
        // Replies of a cancelled step may come before.
        while let Some(message) = self.0.world.peers.try_receive(rank)? {
            if let (Reply::Other { text, ops }, numbers) = self.0.reply(rank, message)? {
                ops.count();
                return Ok(Some(Message { text, numbers }));
            }
        }
        Ok(None)
    }
}

/// The trained model, as a rank other than 0 has it.
pub struct RankModel<'a> {
    /// The rank's part of the threads.
    pub ctx: &'a Context,
    /// The model's configuration.
    pub config: &'a Arc<ModelConfig>,
    /// The weights; `None` unless rank 0 has shared them.
    pub weights: Option<ModelView<'a>>,
    /// The activations that the rank keeps for the next step's passes; none before the work sets them.
    pub activations: &'a mut Option<RolloutActivations>,
}

/// Sends a reply to rank 0.
pub type SendReply<'a> = dyn Fn(Message) -> Result<()> + 'a;

/// The work of a rank besides training, and its log.
pub trait OtherWork {
    /// Does the work that a message describes. Returns the last reply, which is sent after the weights are released;
    /// `reply` sends the others.
    fn work(&mut self, model: RankModel<'_>, work: &Message, reply: &SendReply<'_>) -> Result<Message>;

    /// Writes the rank's log to this file from now on, beginning with the notes so far.
    fn open_log(&mut self, file: &Path) -> Result<()>;

    /// Notes an event in the rank's log.
    fn note(&mut self, text: &str);
}

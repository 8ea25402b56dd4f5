//! A cluster of containers, by docker-compose.

use std::path::PathBuf;

use tokio::sync::watch;

use super::fleet::{Fault, Node, Seat};
use crate::client::Target;

/// Not yet there: replaced by its owner.
pub(crate) enum ComposeFleet {}

impl ComposeFleet {
    pub(crate) async fn apply(&mut self, _: &Fault) -> anyhow::Result<()> {
        match *self {}
    }
    pub(crate) fn front(&self) -> Target {
        match *self {}
    }
    pub(crate) fn seats(&self) -> watch::Receiver<Vec<Seat>> {
        match *self {}
    }
    pub(crate) fn name(&self, _: Node) -> String {
        match *self {}
    }
    pub(crate) async fn add_worker(&mut self, _: usize, _: usize) -> anyhow::Result<()> {
        match *self {}
    }
    pub(crate) async fn remove_worker(&mut self, _: usize, _: usize) -> anyhow::Result<()> {
        match *self {}
    }
    pub(crate) async fn scale(&mut self, _: usize) -> anyhow::Result<()> {
        match *self {}
    }
    pub(crate) async fn logs(&self) -> anyhow::Result<Vec<(String, PathBuf)>> {
        match *self {}
    }
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        match self {}
    }
}

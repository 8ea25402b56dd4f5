//! Pods as a source of workers, against the fake API server: each test is a fault that other routers got wrong, or that
//! an API server has.

mod failures;
mod life_of_pods;
mod scene;
mod watches;

//! How a worker is described on a command line, and in the body that says so to a replica.

use std::collections::BTreeSet;

use grapevine_gossip::worker::{Labels, Role, weight_milli};
use grapevine_transfer::{ZMQ_FORMS, is_zmq_address};
use serde_json::{Map, Value, json};

use super::failure::Failure;

// Plain comments: clap would show doc comments in place of the command's.
#[derive(clap::Args)]
pub(super) struct Description {
    /// Id in the cluster, of a single worker [default: the address]. Keep it the same over restarts.
    #[arg(long)]
    pub(super) id: Option<String>,
    /// Model or adapter it serves; may be repeated [default: the worker is asked].
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// Share of keys against other workers, 0.001 to 100 [default: 1].
    #[arg(long, value_parser = weight, allow_negative_numbers = true)]
    weight: Option<f64>,
    /// Requests in flight above which nothing more is sent to it [default: no limit].
    #[arg(long)]
    max_in_flight: Option<u32>,
    /// Where it stands.
    #[arg(long)]
    zone: Option<String>,
    /// Which half of a request it takes: any (the whole), prefill or decode [default: any].
    #[arg(long)]
    role: Option<Role>,
    /// Number of data-parallel ranks of its engine.
    #[arg(long, value_name = "RANKS")]
    dp_size: Option<u32>,
    /// How blocks come to or from it: nixl, mooncake, moriio, p2p_nccl, store, sglang, or vLLM's name of the class
    /// [default: as the replicas are configured].
    #[arg(long, value_name = "CONNECTOR")]
    kv_connector: Option<String>,
    /// Port at its host by which a prefill worker is asked for blocks.
    #[arg(long, value_name = "PORT")]
    bootstrap_port: Option<u16>,
    /// Address of its engine's ZMQ side; of MoRI-IO host:HOST,handshake:PORT,notify:PORT.
    #[arg(long, value_name = "HOST:PORT", value_parser = zmq_address)]
    kv_address: Option<String>,
    /// What else is to be known of it; may be repeated, with another name each time.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

impl Description {
    /// Refuses a label that is given twice: one of its values would be lost without a word.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let mut names = BTreeSet::new();
        for (name, _) in &self.labels {
            if !names.insert(name) {
                let why =
                    format!("--label {name} is given twice; a worker has one value of each label");
                return Err(Failure::Usage(why));
            }
        }
        Ok(())
    }

    /// The members of `POST /workers` for a worker at this address, without its id; what was not given is left out.
    pub(super) fn of(&self, url: &str) -> Map<String, Value> {
        let models = (!self.models.is_empty()).then(|| json!(self.models));
        let labels: Map<_, _> = self
            .labels
            .iter()
            .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
            .collect();
        let labels = (!labels.is_empty()).then_some(Value::Object(labels));
        let given = [
            ("url", Some(Value::from(url))),
            ("models", models),
            ("weight", self.weight.map(Value::from)),
            ("max_in_flight", self.max_in_flight.map(Value::from)),
            ("zone", self.zone.clone().map(Value::from)),
            ("role", self.role.map(|role| role.as_str().into())),
            ("dp_size", self.dp_size.map(Value::from)),
            ("kv_connector", self.kv_connector.clone().map(Value::from)),
            ("bootstrap_port", self.bootstrap_port.map(Value::from)),
            ("kv_address", self.kv_address.clone().map(Value::from)),
            ("labels", labels),
        ];
        let given = given.into_iter();
        given
            .filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .collect()
    }
}

/// Refused here, because JSON has no word for `nan` and `inf`: the replica would be told of no weight at all.
fn weight(text: &str) -> Result<f64, String> {
    let weight = text
        .parse()
        .map_err(|_| "it is not a number from 0.001 to 100")?;
    weight_milli(weight).map_err(|error| error.to_string())?;
    Ok(weight)
}

/// As a replica reads it, before anything is sent.
fn zmq_address(text: &str) -> Result<String, String> {
    match is_zmq_address(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("write {ZMQ_FORMS}")),
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    let labels = Labels::from_texts([text]).map_err(|error| error.to_string())?;
    let label = labels.iter().next();
    let (name, value) = label.ok_or("write name=value")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::shown::add_command::add_command;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        description: Description,
    }

    #[test]
    fn a_label_is_given_once() {
        for (words, is_good) in [
            ("x --label a=1 --label b=1", true),
            ("x --label a=1 --label a=2", false),
        ] {
            let line = Line::try_parse_from(words.split(' ')).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(line.description.check().is_ok(), is_good, "{words}");
        }
    }

    #[test]
    fn what_is_given_is_in_the_body() {
        let line = "x --role prefill --kv-connector mooncake --bootstrap-port 8998 --kv-address h:1 --dp-size 2 \
                    --label kv.tp_size=8 --label a=b=c --zone z --weight 2.5";
        let line = Line::try_parse_from(line.split_whitespace()).unwrap_or_else(|e| panic!("{e}"));
        let expected = json!({
            "url": "http://w", "weight": 2.5, "zone": "z", "role": "prefill", "dp_size": 2, "kv_connector": "mooncake",
            "bootstrap_port": 8998, "kv_address": "h:1", "labels": { "kv.tp_size": "8", "a": "b=c" },
        });
        let body = line.description.of("http://w");
        let again = add_command(None, &body);
        let again = again.replacen("grapevine workers add http://w", "x", 1);
        assert_eq!(Value::Object(body), expected);
        let again =
            Line::try_parse_from(again.split_whitespace()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(Value::Object(again.description.of("http://w")), expected);
        for bad in [
            "--role both",
            "--label a",
            "--label A=1",
            "--bootstrap-port 70000",
            "--kv-address foo",
            "--kv-address host:h,handshake",
            "--kv-address 10.0.0.5:0",
            "--weight nan",
            "--weight inf",
            "--weight -1",
            "--weight 0",
            "--weight heavy",
        ] {
            let words = ["x"].into_iter().chain(bad.split_whitespace());
            assert!(Line::try_parse_from(words).is_err(), "{bad}");
        }
    }
}

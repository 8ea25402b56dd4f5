//! `grapevine top`: the picture of the page in a terminal, live, over the admin API of any replica.
//!
//! - `asker.rs`: asks, and goes on with another replica when the asked one dies. The only file with IO to replicas.
//! - `picture.rs`: what was answered.
//! - `app.rs`: which view is shown, what is selected; what keys do. Pure.
//! - `views/`: each view as lines of a terminal, from picture and app. Pure.
//! - `terminal.rs`: the terminal itself, its keys, and that it is left as it was found.
//!
//! It changes nothing in the cluster.

mod app;
mod asker;
mod picture;
mod terminal;
#[cfg(test)]
mod tests;
mod view;
mod views;

use std::io::IsTerminal as _;
use std::iter;
use std::pin::pin;
use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use self::app::{App, Done};
use self::asker::Asker;
use self::picture::Picture;
use self::terminal::Terminal;
use self::view::View;
use super::client::{ANSWER_WITHIN, AdminArgs, AdminClient};
use super::failure::Failure;
use super::show::{print_line, wants_colours};

/// Shows the cluster live, in a terminal: what is wrong, replicas, workers, rings, the last hour, agreement, events.
///
/// It is the picture of the page, for those who came by ssh: no mouse, any size, and keys that `?` lists. Where the
/// asked replica dies, another one that it named is asked, and the last line says so.
#[derive(clap::Args)]
// Known so that the refusal can say what has it.
#[command(mut_arg("json", |json| json.hide(true)), after_help = "\
Examples:
  grapevine top
  grapevine top --admin http://10.0.0.2:30001 --view workers
  grapevine top --once --view agreement    # as plain text, for scripts
  NO_COLOR=1 grapevine top

Keys: 1 to 7, Tab: views; arrows, j, k, PgUp, PgDn: rows; Enter: the hour of the selected row; Esc: back; r: ask now;
?: all keys; q: end.

Exit codes: 0 it was ended by its user, with --once all is well; 2 there is no terminal; 3 no replica answers; with
--once 4: something is wrong.")]
pub struct TopArgs {
    /// The view to begin with.
    #[arg(long, value_enum, default_value_t = View::Overview)]
    view: View,
    /// Print the view once, as plain text, and end.
    #[arg(long)]
    once: bool,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, conflicts_with = "once", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    every: u64,
    /// With --once: columns of the text.
    #[arg(long, value_name = "COLUMNS", default_value_t = 120, requires = "once", value_parser = clap::value_parser!(u16).range(20..=1_000))]
    width: u16,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Shows the cluster until its user has seen enough.
/// Errors: there is no terminal; no replica answers at the start; with `--once`: something is wrong with the cluster.
pub async fn top(args: TopArgs) -> Result<(), Failure> {
    let client = AdminClient::new(&args.admin)?;
    if args.admin.json {
        let what = "top has no JSON: `grapevine status --json` and `grapevine events --json` have what it shows";
        return Err(Failure::Usage(what.to_owned()));
    }
    let mut app = App::new(args.view, wants_colours());
    let mut asker = Asker::new(client);
    // The first answer comes before the terminal is taken: who gave a wrong address reads so on a plain line.
    let first = asker.ask(&app.wanted(), |_| {}).await?;
    if args.once {
        return once(&mut app, first, args.width);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let what = "top needs a terminal; --once prints plain text";
        return Err(Failure::Usage(what.to_owned()));
    }
    app.show(first);
    live(app, asker, Duration::from_secs(args.every)).await
}

/// Rows of the text of `--once`, at most.
const ONCE_ROWS: u16 = 600;

fn once(app: &mut App, picture: Picture, width: u16) -> Result<(), Failure> {
    let is_wrong = picture.headline().is_wrong;
    let text = text_of(app, picture, width);
    text.trim_end().lines().try_for_each(print_line)?;
    match is_wrong {
        true => Err(Failure::NotWell),
        false => Ok(()),
    }
}

/// The view as plain text.
fn text_of(app: &mut App, picture: Picture, width: u16) -> String {
    app.is_coloured = false;
    let rows = u16::try_from(picture.rows_of(app.view)).unwrap_or(ONCE_ROWS);
    app.show(picture);
    let area = Rect::new(0, 0, width, rows.saturating_add(60).min(ONCE_ROWS));
    let mut buffer = Buffer::empty(area);
    views::draw_body(app, area, &mut buffer);
    let mut text = views::plain(&buffer);
    // The overview says by itself what it leaves out.
    if app.view != View::Overview && text.lines().last().is_some_and(|line| !line.is_empty()) {
        text.push_str(&format!(
            "these are the first {ONCE_ROWS} lines: `grapevine workers list`, `status` and `events` have all\n"
        ));
    }
    text
}

/// A picture that is so much older than it should be is shown as old, whatever keeps the next one back: an answer may
/// take 5 s, and so may that of another replica.
const LATE: Duration = ANSWER_WITHIN.saturating_mul(2);

/// Draws at every answer and second, and when all keys that wait are done: a held one repeats faster than many rows are
/// drawn.
async fn live(mut app: App, asker: Asker, every: Duration) -> Result<(), Failure> {
    let mut terminal = Terminal::take()?;
    app.stale_after = every + LATE;
    let (wanted, wishes) = watch::channel(app.wanted());
    let (answers, mut pictures) = watch::channel(None);
    let asking = tokio::spawn(asker.run(every, wishes, answers));
    let mut second = interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told_to_end = pin!(terminal::told_to_end());
    let done = loop {
        if let Err(failure) = terminal.draw(&mut app) {
            break Err(failure);
        }
        tokio::select! {
            event = terminal.event() => {
                // Without one the terminal is gone.
                let Some(event) = event else { break Ok(()) };
                let waiting = iter::from_fn(|| terminal.waiting());
                if iter::once(event).chain(waiting).any(|event| app.on_event(&event) == Done::Yes) {
                    break Ok(());
                }
                wanted.send_if_modified(|before| {
                    let now = app.wanted();
                    let is_new = *before != now;
                    *before = now;
                    is_new
                });
            }
            changed = pictures.changed() => {
                let answer: Option<Result<Picture, Failure>> = pictures.borrow_and_update().clone();
                match (changed, answer) {
                    (Ok(()), Some(answer)) => app.answered(answer),
                    (Ok(()), None) => {}
                    // The task that asks ends with this one alone.
                    (Err(_), _) => break Ok(()),
                }
            }
            _ = second.tick() => {}
            () = &mut told_to_end => break Ok(()),
        }
    };
    asking.abort();
    terminal.leave()?;
    done
}

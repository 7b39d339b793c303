//! Another client loads the queue and reads the results: pika, where Python and it are to be had.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::broker_kit::eventually;
use crate::place::{Runs, counts, drained};
use crate::site::{Site, shared};

const LOAD: &str = r#"
import pika, sys
connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
channel.confirm_delivery()
def put(body, **properties):
    channel.basic_publish("", "words", body, pika.BasicProperties(**properties), mandatory=True)
for n in range(20):
    put("ok", message_id=f"p{n}", correlation_id=f"c{n}", headers={"n": n, "none": None, "list": [1, "a"]})
put(b"ok \xff\xfe", message_id="binary", type="\u00fcn\u00ef", delivery_mode=1)
put("reject", message_id="bad", user_id="guest", expiration="60000", priority=3)
connection.close()
"#;

const READ: &str = r#"
import pika, sys
connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
for queue in ("words.results", "words.dead"):
    while True:
        method, properties, body = channel.basic_get(queue)
        if method is None: break
        reason = (properties.headers or {}).get("x-acquit-reason", "")
        print(queue, properties.message_id, properties.correlation_id, reason, body.decode("latin-1"))
        channel.basic_ack(method.delivery_tag)
connection.close()
"#;

/// The folder of the module, fetched by Python's own client where it is missing; `None` where that cannot be.
fn pika() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("python");
    let works = || python(&folder, "import pika", "").status.success();
    if !works() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--target"]);
        pip.arg(&folder).arg("pika==1.3.2").output().ok()?;
    }
    works().then_some(folder)
}

fn python(modules: &PathBuf, program: &str, argument: &str) -> Output {
    let mut python = Command::new("python3");
    python
        .env("PYTHONPATH", modules)
        .args(["-c", program, argument]);
    python.output().unwrap_or_else(|_| {
        let status = std::os::unix::process::ExitStatusExt::from_raw(1 << 8);
        Output {
            status,
            stdout: Vec::new(),
            stderr: Vec::new(),
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_client_publishes_is_answered_in_its_terms() {
    let Some(modules) = tokio::task::spawn_blocking(pika).await.expect("no panic") else {
        eprintln!("not tried: there is no pika");
        return;
    };
    let vhost = shared().await;
    let site = Site::on(&vhost).await;
    let run = async |program: &'static str| {
        let (modules, uri) = (modules.clone(), vhost.uri());
        let output = tokio::task::spawn_blocking(move || python(&modules, program, &uri));
        let output = output.await.expect("no panic");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(LOAD).await;
    let runs = Runs::default();
    let handle = site.start(site.spec(runs.handler()));
    eventually("all are settled", async || {
        let counts = counts(&handle).await;
        (counts.acked == 21 && counts.rejected == 1).then_some(())
    })
    .await;
    assert!(drained(handle).await.clean);
    let read = run(READ).await;
    for n in 0..20 {
        let line = format!("words.results p{n}:reply p{n}  done");
        assert!(read.contains(&line), "{line}\n{read}");
    }
    assert!(
        read.contains("words.dead bad None rejected reject"),
        "{read}"
    );
    assert_eq!(read.lines().count(), 22, "{read}");
    site.counts("words", [0, 0, 0]).await;
}

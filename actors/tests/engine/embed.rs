//! The engine inside other programs.

use std::sync::Arc;
use std::time::Duration;

use acquit_actors::ports::{DeliveryEnded, Observer};
use acquit_actors::testing::{ScriptedTransport, run_virtual};
use acquit_actors::{Engine, EngineEnd, Handle, StartError};

use crate::support::{Runs, drain_clean, nothing_left, obedient, quiet_panics, start, words};

fn engine(broker: &ScriptedTransport) -> Handle {
    quiet_panics();
    let spec = words(obedient(&Runs::default()));
    let engine = Engine::new(broker.shared()).with_consumer(spec);
    engine.start().unwrap()
}

async fn use_it(broker: &ScriptedTransport, handle: Handle) {
    for _ in 0..100 {
        broker.push("words", "ok");
    }
    broker.settled(100).await;
    assert_eq!(handle.drain_and_wait("test").await.exit_code(), 0);
}

#[test]
fn it_starts_where_there_is_no_runtime() {
    let broker = ScriptedTransport::new();
    let handle = engine(&broker);
    broker.push("words", "ok");
    assert_eq!(handle.wait_blocking(Duration::ZERO), None);
    // A future needs no runtime of the engine's kind.
    futures_executor_block_on(async {
        broker.settled(1).await;
        handle.drain("test").await.unwrap();
    });
    let end = handle.wait_blocking(Duration::from_secs(10)).unwrap();
    assert_eq!(end.exit_code(), 0);
}

/// The smallest executor there is: parks the thread between polls.
fn futures_executor_block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut cx = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        std::thread::park_timeout(Duration::from_secs(10));
    }
}

#[test]
fn it_starts_inside_a_tokio_runtime_of_either_kind() {
    let mut builders = [
        tokio::runtime::Builder::new_current_thread(),
        tokio::runtime::Builder::new_multi_thread(),
    ];
    for builder in &mut builders {
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let broker = ScriptedTransport::new();
            let handle = engine(&broker);
            use_it(&broker, handle).await;
        });
    }
}

#[test]
fn it_starts_inside_an_actix_system_and_leaves_it_running() {
    let system = actix_rt::System::new();
    system.block_on(async {
        let broker = ScriptedTransport::new();
        let handle = engine(&broker);
        use_it(&broker, handle).await;
        let still_here = actix_rt::spawn(async { 7 }).await.unwrap();
        assert_eq!(still_here, 7);
    });
}

#[test]
fn two_engines_in_one_process_do_not_meet() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let (one, two) = (ScriptedTransport::new(), ScriptedTransport::new());
        let (first, second) = (engine(&one), engine(&two));
        one.push("words", "ok");
        one.settled(1).await;
        assert_eq!(first.drain_and_wait("test").await.exit_code(), 0);
        assert_eq!(second.ended(), None);
        use_it(&two, second).await;
        assert_eq!((one.settlements().len(), two.settlements().len()), (1, 100));
    });
}

#[test]
fn two_consumers_of_one_name_are_refused() {
    let broker = ScriptedTransport::new();
    let spec = words(obedient(&Runs::default()));
    let engine = Engine::new(broker.shared()).with_consumer(spec.clone());
    let refused = engine.with_consumer(spec).start();
    assert!(matches!(refused, Err(StartError::DuplicateConsumer(name)) if name == "words"));
}

#[test]
fn an_observer_that_panics_loses_the_observation_only() {
    struct Grumpy;
    impl Observer for Grumpy {
        fn delivery_ended(&self, _: &DeliveryEnded) {
            panic!("scripted: observer");
        }
        fn phase_changed(&self, _: acquit_actors::model::Phase) {
            panic!("scripted: observer");
        }
        fn actor_exited(&self, _: &str, _: &str, _: bool) {
            panic!("scripted: observer");
        }
        fn notice(&self, _: &str) {
            panic!("scripted: observer");
        }
    }
    run_virtual(async {
        quiet_panics();
        let broker = ScriptedTransport::new().with_redelivery();
        broker.refuse_opens(1);
        let handle = Engine::new(broker.shared())
            .with_consumer(words(obedient(&Runs::default())))
            .with_observer(Arc::new(Grumpy))
            .start_local()
            .unwrap();
        for body in ["ok", "fail", "reject", "ok"] {
            broker.push("words", body);
        }
        broker.settled(6).await;
        handle
            .inject_panic(acquit_actors::testing::Victim::Publisher)
            .await
            .unwrap();
        nothing_left(&handle).await;
        let snapshot = handle.snapshot().await.unwrap();
        assert!(snapshot.observer_panics >= 7);
        drain_clean(&handle, &broker).await;
    });
}

#[test]
fn a_handle_outlives_its_engine_and_dropping_handles_ends_nothing() {
    run_virtual(async {
        let broker = ScriptedTransport::new();
        let handle = start(&broker, words(obedient(&Runs::default())));
        let kept = handle.clone();
        drop(handle);
        broker.push("words", "ok");
        broker.settled(1).await;
        drain_clean(&kept, &broker).await;
        assert!(matches!(kept.ended(), Some(EngineEnd::Drained(_))));
        assert!(kept.tree().await.is_err());
    });
}

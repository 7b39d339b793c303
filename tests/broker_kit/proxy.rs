//! A TCP proxy on loopback that spoils connections on demand.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::ground::PortLease;

/// The direction in which bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    ToServer,
    ToClient,
}

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Pass,
    /// Each piece waits for a time in this range, chosen by the seed.
    Delay {
        least: Duration,
        most: Duration,
    },
    /// So many bytes at a time, with a pause after each.
    Trickle {
        bytes: usize,
        pause: Duration,
    },
    /// A black hole: nothing arrives, and nobody is told, not even of an end. What is under way arrives when the
    /// hole closes, as TCP would send it again.
    Hold,
    /// The reader sees an end (FIN), though it can go on writing. Later bytes vanish.
    HalfClose,
    /// Passes so many more bytes, then cuts the connection.
    CutAfter {
        bytes: usize,
        cut: Cut,
    },
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Both sides get a RST.
    Reset,
    /// Both sides get a FIN.
    Fin,
}

/// Gets every byte that a side has sent, before it is passed on, with the connection's number; `None` at its end.
pub(crate) type Tap = Arc<dyn Fn(u64, Way, Option<&[u8]>) + Send + Sync>;

/// The orders to one connection.
#[derive(Clone, Copy, Debug)]
struct Orders {
    to_server: Flow,
    to_client: Flow,
    cut: Option<Cut>,
}

impl Orders {
    const PASS: Self = Self {
        to_server: Flow::Pass,
        to_client: Flow::Pass,
        cut: None,
    };

    fn flow(&self, way: Way) -> Flow {
        match way {
            Way::ToServer => self.to_server,
            Way::ToClient => self.to_client,
        }
    }

    fn set(&mut self, way: Way, flow: Flow) {
        match way {
            Way::ToServer => self.to_server = flow,
            Way::ToClient => self.to_client = flow,
        }
    }
}

struct State {
    /// For connections to come.
    orders: Orders,
    links: BTreeMap<u64, watch::Sender<Orders>>,
    accepted: u64,
}

struct Shared {
    target: watch::Sender<SocketAddr>,
    seed: u64,
    tap: Option<Tap>,
    state: Mutex<State>,
    /// Wanted, and what is the case.
    refuses: watch::Sender<bool>,
    is_refusing: watch::Sender<bool>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands in front of a server, on a runtime of its own. Dropping it drops its connections.
pub(crate) struct Proxy {
    lease: PortLease,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("port", &self.port())
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}

impl Proxy {
    /// Listens on a free port and passes everything on to `target`.
    pub(crate) fn start(target: SocketAddr) -> Self {
        Self::start_with(target, 0, None)
    }

    /// The same, with a seed for what chance decides, and somebody who listens.
    pub(crate) fn start_with(target: SocketAddr, seed: u64, tap: Option<Tap>) -> Self {
        let shared = Arc::new(Shared {
            target: watch::Sender::new(target),
            seed,
            tap,
            state: Mutex::new(State {
                orders: Orders::PASS,
                links: BTreeMap::new(),
                accepted: 0,
            }),
            refuses: watch::Sender::new(false),
            is_refusing: watch::Sender::new(true),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("proxy")
            .enable_all()
            .build()
            .expect("a runtime");
        let lease = PortLease::take();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, lease.port));
        let listener = listener.expect("a leased port");
        listener.set_nonblocking(true).expect("a socket");
        runtime.spawn(accept(shared.clone(), listener));
        Self {
            lease,
            shared,
            runtime: Some(runtime),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.lease.port
    }

    /// Sends connections to come to another server.
    pub(crate) fn set_target(&self, target: SocketAddr) {
        self.shared.target.send_replace(target);
    }

    /// Sets one direction of all connections, those to come too.
    pub(crate) fn set(&self, way: Way, flow: Flow) {
        let mut state = self.shared.lock();
        state.orders.set(way, flow);
        for link in state.links.values() {
            link.send_modify(|orders| orders.set(way, flow));
        }
    }

    /// Sets both directions of all connections, those to come too.
    pub(crate) fn set_both(&self, flow: Flow) {
        self.set(Way::ToServer, flow);
        self.set(Way::ToClient, flow);
    }

    /// Sets one direction of one connection.
    pub(crate) fn set_one(&self, connection: u64, way: Way, flow: Flow) {
        if let Some(link) = self.shared.lock().links.get(&connection) {
            link.send_modify(|orders| orders.set(way, flow));
        }
    }

    /// Ends all connections, also those in a black hole. Says how many there were.
    pub(crate) fn cut(&self, cut: Cut) -> usize {
        let state = self.shared.lock();
        for link in state.links.values() {
            link.send_modify(|orders| orders.cut = Some(cut));
        }
        state.links.len()
    }

    /// Ends one connection.
    pub(crate) fn cut_one(&self, connection: u64, cut: Cut) {
        if let Some(link) = self.shared.lock().links.get(&connection) {
            link.send_modify(|orders| orders.cut = Some(cut));
        }
    }

    /// Refuses new connections, or takes them again; on return that is so. Open connections stay.
    pub(crate) async fn refuse(&self, refuse: bool) {
        self.shared.refuses.send_replace(refuse);
        let mut is_refusing = self.shared.is_refusing.subscribe();
        is_refusing
            .wait_for(|is_refusing| *is_refusing == refuse)
            .await
            .expect("the proxy lives");
    }

    /// The numbers of the open connections.
    pub(crate) fn connections(&self) -> Vec<u64> {
        self.shared.lock().links.keys().copied().collect()
    }

    /// How many connections there ever were.
    pub(crate) fn accepted(&self) -> u64 {
        self.shared.lock().accepted
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(shared: Arc<Shared>, first: std::net::TcpListener) {
    let address = first.local_addr().expect("a bound socket");
    let mut refuses = shared.refuses.subscribe();
    let mut listener = Some(TcpListener::from_std(first).expect("a non-blocking socket"));
    loop {
        let refuse = *refuses.borrow_and_update();
        if refuse {
            listener = None;
        } else if listener.is_none() {
            listener = Some(TcpListener::bind(address).await.expect("our port"));
        }
        shared.is_refusing.send_replace(refuse);
        tokio::select! {
            changed = refuses.changed() => if changed.is_err() { return },
            client = next(listener.as_ref()) => {
                if let Ok(client) = client {
                    tokio::spawn(serve(shared.clone(), client));
                }
            }
        }
    }
}

async fn next(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => Ok(listener.accept().await?.0),
        None => std::future::pending().await,
    }
}

/// One connection, from its accept to its end.
async fn serve(shared: Arc<Shared>, client: TcpStream) {
    let (number, orders) = {
        let mut state = shared.lock();
        state.accepted += 1;
        let number = state.accepted;
        let (sender, orders) = watch::channel(state.orders);
        state.links.insert(number, sender);
        (number, orders)
    };
    let target = *shared.target.borrow();
    match TcpStream::connect(target).await {
        Ok(server) => link(&shared, number, orders, client, server).await,
        // As if nobody listened here; the connection is open already, so it can only be reset.
        Err(_) => reset(&client),
    }
    shared.lock().links.remove(&number);
    if let Some(tap) = &shared.tap {
        tap(number, Way::ToServer, None);
    }
}

async fn link(
    shared: &Shared,
    number: u64,
    orders: watch::Receiver<Orders>,
    mut client: TcpStream,
    mut server: TcpStream,
) {
    for stream in [&client, &server] {
        stream.set_nodelay(true).ok();
    }
    let mut cut = orders.clone();
    let how = {
        let (client_reader, client_writer) = client.split();
        let (server_reader, server_writer) = server.split();
        let pump = |way, reader, writer| Pump {
            way,
            reader,
            writer,
            orders: orders.clone(),
            chance: StdRng::seed_from_u64(
                shared.seed ^ (number << 1) ^ u64::from(way == Way::ToClient),
            ),
            number,
            tap: shared.tap.as_ref(),
        };
        let to_server = pump(Way::ToServer, client_reader, server_writer).run();
        let to_client = pump(Way::ToClient, server_reader, client_writer).run();
        tokio::select! {
            ended = async { tokio::try_join!(to_server, to_client) } => ended.err(),
            ordered = cut.wait_for(|orders| orders.cut.is_some()) => match ordered {
                Ok(orders) => orders.cut,
                Err(_) => None,
            },
        }
    };
    match how {
        Some(Cut::Reset) => [client, server].iter().for_each(reset),
        Some(Cut::Fin) => {
            tokio::join!(finish(client), finish(server));
        }
        None => {}
    }
}

fn reset(stream: &TcpStream) {
    stream.set_zero_linger().ok();
}

/// A close with unread bytes would be a RST: says FIN first, and reads on for a while.
async fn finish(mut stream: TcpStream) {
    stream.shutdown().await.ok();
    let mut sink = tokio::io::sink();
    let drained = tokio::io::copy(&mut stream, &mut sink);
    tokio::time::timeout(Duration::from_secs(2), drained)
        .await
        .ok();
}

/// One direction of one connection.
struct Pump<'a> {
    way: Way,
    reader: ReadHalf<'a>,
    writer: WriteHalf<'a>,
    orders: watch::Receiver<Orders>,
    chance: StdRng,
    number: u64,
    tap: Option<&'a Tap>,
}

impl Pump<'_> {
    /// Ends well when its reader ends; with how to cut when an order or a broken socket says so.
    async fn run(mut self) -> Result<(), Cut> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = self.read(&mut buffer).await?;
            if count == 0 {
                self.writer.shutdown().await.ok();
                return Ok(());
            }
            if let Some(tap) = self.tap {
                tap(self.number, self.way, Some(&buffer[..count]));
            }
            self.forward(&buffer[..count]).await?;
        }
    }

    /// Reads when bytes are there and nothing holds them back.
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Cut> {
        loop {
            match self.flow() {
                Flow::Hold => {
                    self.changed().await?;
                    continue;
                }
                Flow::HalfClose => {
                    self.writer.shutdown().await.ok();
                }
                _ => {}
            }
            tokio::select! {
                biased;
                changed = self.orders.changed() => changed.map_err(|_| Cut::Reset)?,
                count = self.reader.read(buffer) => return count.map_err(|_| Cut::Reset),
            }
        }
    }

    async fn forward(&mut self, mut bytes: &[u8]) -> Result<(), Cut> {
        while !bytes.is_empty() {
            let count = match self.flow() {
                Flow::Pass => bytes.len(),
                Flow::Delay { least, most } => {
                    pause(self.chance.random_range(least..=most)).await;
                    bytes.len()
                }
                Flow::Trickle {
                    bytes: few,
                    pause: time,
                } => {
                    let count = few.clamp(1, bytes.len());
                    self.write(&bytes[..count]).await?;
                    pause(time).await;
                    bytes = &bytes[count..];
                    continue;
                }
                Flow::Hold => {
                    self.changed().await?;
                    continue;
                }
                Flow::HalfClose => {
                    self.writer.shutdown().await.ok();
                    return Ok(());
                }
                Flow::CutAfter { bytes: left, cut } => {
                    return self.cut_after(left, cut, bytes).await;
                }
            };
            self.write(&bytes[..count]).await?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    async fn cut_after(&mut self, left: usize, cut: Cut, first: &[u8]) -> Result<(), Cut> {
        let count = left.min(first.len());
        self.write(&first[..count]).await?;
        let mut left = left - count;
        let mut byte = [0; 1];
        while left > 0 {
            let count = self.reader.read(&mut byte).await.map_err(|_| Cut::Reset)?;
            if count == 0 {
                break;
            }
            if let Some(tap) = self.tap {
                tap(self.number, self.way, Some(&byte));
            }
            self.write(&byte).await?;
            left -= 1;
        }
        if cut == Cut::Reset {
            // A RST overtakes what the kernel has not sent yet; these bytes were promised.
            pause(Duration::from_millis(20)).await;
        }
        Err(cut)
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Cut> {
        self.writer.write_all(bytes).await.map_err(|_| Cut::Reset)
    }

    fn flow(&mut self) -> Flow {
        self.orders.borrow_and_update().flow(self.way)
    }

    async fn changed(&mut self) -> Result<(), Cut> {
        self.orders.changed().await.map_err(|_| Cut::Reset)
    }
}

async fn pause(time: Duration) {
    // tidy-allow: sleep: lateness is what this proxy makes
    tokio::time::sleep(time).await;
}

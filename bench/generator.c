/*
 * Load generator: sends prepared frames through a hop and receives them after it, in one process and one loop.
 *
 *   generator -p PORT -c CONNECTIONS -f FRAMES -s FRAME_BYTES -t STAMP_AT [-g GREETINGS -n GREETING_BYTES]
 *             [-e CERTIFICATE -k KEY] [-w] LISTEN...
 *
 * Makes CONNECTIONS connections to PORT on 127.0.0.1, listens on every LISTEN port, and then reads commands from
 * standard input, one a line, and answers each with one line of JSON:
 *
 *   flood COUNT       as fast as the hop forwards, with at most WINDOW_BYTES in flight
 *   rate COUNT HZ     open loop: message i is due at i / HZ, and its latency counts from then, late or not
 *   ping COUNT        one message in flight
 *   offer SECONDS HZ LIMIT_US REST_MS
 *                     open loop with refusals: a message that is due while 16 KiB wait for its socket is refused and
 *                     never sent. Counts all arrivals in this time, whenever they were sent, and those within
 *                     LIMIT_US; then continues to receive, for REST_MS at most, until everything has arrived or
 *                     nothing more arrives. It does not wait for messages of the line before, so several lines are
 *                     one load. Latencies of the last LISTEN port and of all others are also reported separately,
 *                     `slow_` and `fast_`.
 *   throttle BYTES_S  read at most so much from the last LISTEN port; 0 removes the limit
 *
 * FRAMES has frames of equal length, GREETINGS one HELLO for each connection; without it no side sends HELLO, as
 * through a relay. Each connection has its own share of the frames and sends it repeatedly; message id and sequence
 * number differ every time, so no frame is a copy of one that the hop still holds. A latency is from the stamp in the
 * body, at STAMP_AT, to the read that completed the frame, CLOCK_MONOTONIC of one machine. Where latencies are measured
 * the generator polls and never sleeps, so they do not include its own wake-up; they include that of the hop. With -w
 * `offer` sleeps a millisecond when nothing is due, for a generator that shares its core; its latencies include that.
 *
 * With CERTIFICATE and KEY all connections use TLS 1.3, which needs libssl, and WITH_TLS at compile time. Certificates
 * of peers are not checked.
 *
 * The generator has to cost much less than the hop. In a flood the receiver therefore lets the kernel discard the bytes
 * uncopied (MSG_TRUNC) and counts them; whether every frame was whole is checked with the counters of the hop, and by
 * the other two modes, which read every frame.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

#define WINDOW_BYTES (1u << 20) /* less than the sockets hold, so that a gateway forwards and keeps nothing */
#define WRITE_BYTES (256u << 10)
#define READ_BYTES (1u << 20)
#define STALLED_MS 20000
#define QUIET_MS 20
#define EVENTS 256
#define FRAMES_A_ROUND 64     /* of each connection, before the receivers are polled */
#define PENDING_BYTES (16 << 10) /* of each connection that wait for its socket; one write sends them all */
#define THROTTLE_NS 50000     /* between two reads of throttled connections */
#define STRAGGLER_MS 200      /* without an arrival: nothing more is expected */
#define THROTTLE_BYTES (64u << 10)
#define THROTTLE_MAX_NS 100000000ull /* the longest time that is caught up with */
#define BUCKET_BITS 6         /* the leading ones of a latency: exact to 1.6 % */
#define BUCKETS ((64u - BUCKET_BITS) << BUCKET_BITS)
#define MESSAGE_NUMBER_AT 24 /* the second half of message_id */
#define SEQUENCE_AT 48

enum role { LISTENER, SENDER, RECEIVER };

struct socket_state {
    enum role role;
    int fd;
    /* A sender's share of the frames: sent up to `at`, stamped up to `due`; `left` bytes to send in this flood. */
    char *begin, *end, *at, *due;
    uint64_t left;
    int is_blocked;
    /* A receiver's frame that has begun: `got` bytes of it. */
    uint64_t got;
    unsigned char head[5];
    unsigned char stamp[8];
    int is_greeted;
    int is_last; /* a listener on the last LISTEN port, and connections it accepted */
    struct socket_state *next;
#ifdef WITH_TLS
    SSL *tls; /* NULL in plain text */
#endif
};

/* Latencies in buckets: bounded memory, however many there are. */
struct histogram {
    uint64_t count, in_time, max_ns, buckets[BUCKETS];
};

static int epoll_fd;
static struct socket_state *senders;
static uint64_t connections, frame_bytes, stamp_at, frame_count;
static char *greetings;
static uint64_t greeting_bytes, greeting_count, greeted;
static uint64_t received_bytes, received_frames; /* by this command; frames only where they are read */
static uint64_t *latencies;
static char *scratch;
static int is_counting; /* a flood: bytes are discarded unread */
static struct histogram everywhere, at_last, elsewhere; /* of this `offer`: all arrivals, and by port */
static int is_offering, is_sleeping;
static uint64_t limit_ns, sent_ever, arrived_ever;
static uint64_t throttle_bytes_s, throttle_at, throttle_left; /* 0: no limit */
static struct socket_state *throttled;                /* connections of the last port, linked by `next` */

static void fail(const char *what)
{
    fprintf(stderr, "load generator: %s: %s\n", what, errno ? strerror(errno) : "failed");
    exit(1);
}

static uint64_t now_ns(clockid_t clock)
{
    struct timespec at;
    clock_gettime(clock, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static char *read_file(const char *path, uint64_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail(path);
    fseek(file, 0, SEEK_END);
    *size = (uint64_t)ftell(file);
    rewind(file);
    char *data = malloc(*size ? *size : 1);
    if (!data || fread(data, 1, *size, file) != *size)
        fail(path);
    fclose(file);
    return data;
}

static void watch(struct socket_state *state, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = state};
    if (fcntl(state->fd, F_SETFL, O_NONBLOCK) < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, state->fd, &event) < 0)
        fail("watch a socket");
}

#ifdef WITH_TLS
static SSL_CTX *tls_context;

static void set_up_tls(const char *certificate, const char *key)
{
    static const unsigned char alpn[] = "\6sbrk/1";
    tls_context = SSL_CTX_new(TLS_method());
    if (!tls_context || SSL_CTX_use_certificate_chain_file(tls_context, certificate) != 1 ||
        SSL_CTX_use_PrivateKey_file(tls_context, key, SSL_FILETYPE_PEM) != 1)
        fail("certificate and key");
    SSL_CTX_set_min_proto_version(tls_context, TLS1_3_VERSION);
    SSL_CTX_set_mode(tls_context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(tls_context, 1);
    SSL_CTX_set_default_read_buffer_len(tls_context, 128 * 1024);
    SSL_CTX_set_alpn_protos(tls_context, alpn, sizeof alpn - 1);
}

static int select_alpn(SSL *tls, const unsigned char **out, unsigned char *size, const unsigned char *offered,
                       unsigned int offered_size, void *nothing)
{
    (void)tls, (void)nothing, (void)offered_size;
    *out = offered + 1; /* the gateway offers one */
    *size = offered[0];
    return SSL_TLSEXT_ERR_OK;
}

/* The handshake, while the socket still blocks. */
static void secure(struct socket_state *state)
{
    if (!tls_context)
        return;
    state->tls = SSL_new(tls_context);
    SSL_set_fd(state->tls, state->fd);
    errno = 0;
    if ((state->role == SENDER ? SSL_connect(state->tls) : SSL_accept(state->tls)) != 1) {
        ERR_print_errors_fp(stderr);
        fail("TLS handshake");
    }
}

static ssize_t tls_result(struct socket_state *state, int done)
{
    int error = SSL_get_error(state->tls, done);
    if (error == SSL_ERROR_ZERO_RETURN)
        return 0;
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        errno = EAGAIN;
    else if (error == SSL_ERROR_SSL)
        ERR_print_errors_fp(stderr);
    return -1;
}
#endif

static ssize_t send_bytes(struct socket_state *state, const char *data, uint64_t size)
{
#ifdef WITH_TLS
    if (state->tls) {
        uint64_t sent = 0;
        while (sent < size) {
            int done = SSL_write(state->tls, data + sent, (int)(size - sent));
            if (done <= 0)
                return sent ? (ssize_t)sent : tls_result(state, done);
            sent += (uint64_t)done;
        }
        return (ssize_t)sent;
    }
#endif
    return send(state->fd, data, size, MSG_NOSIGNAL);
}

static ssize_t receive_bytes(struct socket_state *state, char *data, uint64_t size, int is_discarding)
{
#ifdef WITH_TLS
    if (state->tls) {
        uint64_t got = 0;
        while (got < size) {
            int done = SSL_read(state->tls, data + got, (int)(size - got));
            if (done <= 0)
                return got ? (ssize_t)got : tls_result(state, done);
            got += (uint64_t)done;
        }
        return (ssize_t)got;
    }
#endif
    return recv(state->fd, data, size, is_discarding ? MSG_TRUNC : 0);
}

static void greet(struct socket_state *state)
{
    if (!greetings)
        return;
    const char *hello = greetings + greeted++ % greeting_count * greeting_bytes;
    if (send_bytes(state, hello, greeting_bytes) != (ssize_t)greeting_bytes)
        fail("say HELLO");
}

static struct sockaddr_in loopback(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void listen_on(int port, int is_last)
{
    struct socket_state *state = calloc(1, sizeof *state);
    struct sockaddr_in address = loopback(port);
    int on = 1;
    state->role = LISTENER;
    state->is_last = is_last;
    state->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(state->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(state->fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(state->fd, 4096) < 0)
        fail("listen");
    watch(state, EPOLLIN);
}

static void accept_on(struct socket_state *listener)
{
    struct socket_state *state = calloc(1, sizeof *state);
    state->role = RECEIVER;
    state->fd = accept(listener->fd, NULL, NULL);
    if (state->fd < 0)
        fail("accept");
    state->is_greeted = !greetings;
#ifdef WITH_TLS
    secure(state);
#endif
    greet(state);
    state->is_last = listener->is_last;
    if (!state->is_last) {
        watch(state, EPOLLIN);
        return;
    }
    if (fcntl(state->fd, F_SETFL, O_NONBLOCK) < 0)
        fail("watch a socket");
    state->next = throttled;
    throttled = state;
    if (!throttle_bytes_s)
        watch(state, EPOLLIN);
}

static void connect_to(int port, struct socket_state *state)
{
    struct sockaddr_in address = loopback(port);
    int on = 1;
    state->role = SENDER;
    state->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(state->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(state->fd, (struct sockaddr *)&address, sizeof address) < 0)
        fail("connect to the hop");
#ifdef WITH_TLS
    secure(state);
#endif
    greet(state);
    watch(state, EPOLLIN | EPOLLOUT | EPOLLET);
}

static uint32_t bucket_of(uint64_t ns)
{
    if (ns < 1u << BUCKET_BITS)
        return (uint32_t)ns;
    int shift = 63 - __builtin_clzll(ns) - BUCKET_BITS;
    return (uint32_t)(((uint64_t)shift << BUCKET_BITS) + (ns >> shift));
}

static uint64_t least_of(uint32_t bucket)
{
    if (bucket < 2u << BUCKET_BITS)
        return bucket;
    int shift = (int)(bucket >> BUCKET_BITS) - 1;
    return (uint64_t)((bucket & ((1u << BUCKET_BITS) - 1)) | 1u << BUCKET_BITS) << shift;
}

static void note(struct histogram *histogram, uint64_t ns)
{
    histogram->count++;
    histogram->in_time += ns <= limit_ns;
    if (ns > histogram->max_ns)
        histogram->max_ns = ns;
    histogram->buckets[bucket_of(ns)]++;
}

static double quantile_us(const struct histogram *histogram, double part)
{
    uint64_t rank = (uint64_t)((double)histogram->count * part), seen = 0;
    for (uint32_t i = 0; i < BUCKETS; i++)
        if ((seen += histogram->buckets[i]) > rank)
            return (double)least_of(i) / 1e3;
    return (double)histogram->max_ns / 1e3;
}

/* Parse bytes read from one connection; frames may be cut anywhere. */
static void parse(struct socket_state *state, const unsigned char *data, uint64_t size)
{
    uint64_t now = now_ns(CLOCK_MONOTONIC);
    while (size) {
        if (state->got < sizeof state->head) {
            state->head[state->got++] = *data++;
            size--;
            continue;
        }
        uint32_t length_field;
        memcpy(&length_field, state->head, sizeof length_field);
        uint64_t length = ntohl(length_field), part = length - state->got;
        if (part > size)
            part = size;
        for (uint64_t i = 0; i < sizeof state->stamp; i++)
            if (stamp_at + i >= state->got && stamp_at + i < state->got + part)
                state->stamp[i] = data[stamp_at + i - state->got];
        state->got += part;
        data += part;
        size -= part;
        if (state->got < length)
            continue;
        state->got = 0;
        if (!state->is_greeted) {
            state->is_greeted = 1;
        } else if (state->head[4] >= 0x10) { /* a dialog frame; link frames such as PING are ignored */
            uint64_t stamp;
            memcpy(&stamp, state->stamp, sizeof stamp);
            if (is_offering && length == frame_bytes) {
                arrived_ever++;
                note(&everywhere, now - stamp);
                note(state->is_last ? &at_last : &elsewhere, now - stamp);
            } else if (latencies && length == frame_bytes) {
                latencies[received_frames] = now - stamp;
            }
            received_frames++;
            received_bytes += length;
        }
    }
}

static ssize_t read_from(struct socket_state *state, uint64_t most)
{
    int is_discarding = is_counting && state->is_greeted && state->role == RECEIVER;
    ssize_t size = receive_bytes(state, scratch, most, is_discarding);
    if (size == 0) {
        errno = 0;
        fail("the hop closed a connection; receive");
    }
    if (size < 0) {
        if (errno == EAGAIN)
            return 0;
        fail("receive");
    }
    if (is_discarding)
        received_bytes += (uint64_t)size;
    else if (state->role == RECEIVER)
        parse(state, (unsigned char *)scratch, (uint64_t)size);
    if (is_counting && state->is_greeted && state->got) { /* the rest of this frame will not be read */
        received_bytes += state->got;
        state->got = 0;
    }
    return size;
}

/* Read from the last port as much as `throttle` allows; whether anything arrived. */
static int read_throttled(void)
{
    uint64_t now = now_ns(CLOCK_MONOTONIC), passed = now - throttle_at;
    int has_arrived = 0;
    if (passed < THROTTLE_NS)
        return 0;
    if (passed > THROTTLE_MAX_NS)
        passed = THROTTLE_MAX_NS;
    throttle_at = now;
    throttle_left += (uint64_t)((double)passed * 1e-9 * (double)throttle_bytes_s);
    for (struct socket_state *state = throttled; state; state = state->next)
        while (throttle_left >= THROTTLE_BYTES) {
            ssize_t size = read_from(state, THROTTLE_BYTES);
            if (size <= 0)
                break;
            throttle_left -= (uint64_t)size;
            has_arrived = 1;
        }
    uint64_t most = 2 * THROTTLE_BYTES + throttle_bytes_s / 10;
    if (throttle_left > most)
        throttle_left = most; /* less arrived than is allowed */
    return has_arrived;
}

static void set_throttle(uint64_t bytes_s)
{
    for (struct socket_state *state = throttled; state; state = state->next) {
        if (!throttle_bytes_s && bytes_s && epoll_ctl(epoll_fd, EPOLL_CTL_DEL, state->fd, NULL) < 0)
            fail("watch a socket");
        if (throttle_bytes_s && !bytes_s)
            watch(state, EPOLLIN);
    }
    throttle_bytes_s = bytes_s;
    throttle_at = now_ns(CLOCK_MONOTONIC);
    throttle_left = 0;
}

static int poll_once(int timeout_ms)
{
    static struct epoll_event events[EVENTS];
    int has_read = throttle_bytes_s && read_throttled();
    int count = epoll_wait(epoll_fd, events, EVENTS, throttle_bytes_s && timeout_ms > 1 ? 1 : timeout_ms);
    for (int i = 0; i < count; i++) {
        struct socket_state *state = events[i].data.ptr;
        if (state->role == LISTENER)
            accept_on(state);
        else if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            read_from(state, READ_BYTES);
        if (state->role == SENDER && events[i].events & EPOLLOUT)
            state->is_blocked = 0;
    }
    return count + has_read;
}

/* Renumber a share that was sent: no frame may be a copy of an earlier one. */
static void renew(struct socket_state *sender)
{
    for (char *frame = sender->begin; frame < sender->end; frame += frame_bytes) {
        static const int places[] = {MESSAGE_NUMBER_AT, SEQUENCE_AT};
        for (int i = 0; i < 2; i++) {
            uint64_t number;
            memcpy(&number, frame + places[i], sizeof number);
            number = htobe64(be64toh(number) + frame_count);
            memcpy(frame + places[i], &number, sizeof number);
        }
    }
    sender->at = sender->due = sender->begin;
}

/* Write up to `limit`; the bytes that the socket accepted. */
static uint64_t write_to(struct socket_state *sender, char *limit)
{
    uint64_t size = (uint64_t)(limit - sender->at);
    if (size > WRITE_BYTES)
        size = WRITE_BYTES;
    ssize_t sent = send_bytes(sender, sender->at, size);
    if (sent < 0) {
        if (errno != EAGAIN)
            fail("send");
        sender->is_blocked = 1;
        return 0;
    }
    sender->at += sent;
    return (uint64_t)sent;
}

static void settle(void)
{
    is_counting = 0;
    latencies = NULL;
    while (poll_once(QUIET_MS) > 0)
        ;
    received_bytes = received_frames = 0;
}

static void flood(uint64_t count)
{
    uint64_t expected = count * frame_bytes, sent = 0, next = 0;
    settle();
    is_counting = 1;
    for (uint64_t i = 0; i < connections; i++)
        senders[i].left = (count / connections + (i < count % connections)) * frame_bytes;
    uint64_t begun = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    while (received_bytes < expected) {
        int has_more = 0;
        uint64_t unread = 0; /* written since the receivers were polled */
        for (uint64_t i = 0; i < connections && sent < received_bytes + WINDOW_BYTES; i++) {
            struct socket_state *sender = &senders[next++ % connections];
            if (!sender->left || sender->is_blocked)
                continue;
            if (unread >= WRITE_BYTES) {
                poll_once(0);
                unread = 0;
            }
            if (sender->at == sender->end)
                renew(sender);
            uint64_t room = (uint64_t)(sender->end - sender->at);
            uint64_t taken = write_to(sender, sender->at + (sender->left < room ? sender->left : room));
            sender->left -= taken;
            sent += taken;
            unread += taken;
            has_more |= sender->left && !sender->is_blocked;
        }
        int may_send = has_more && sent < received_bytes + WINDOW_BYTES;
        if (poll_once(may_send ? 0 : STALLED_MS) == 0 && !may_send) {
            fprintf(stderr, "load generator: %llu of %llu bytes arrived, then none\n",
                    (unsigned long long)received_bytes, (unsigned long long)expected);
            exit(1);
        }
    }
    double seconds = (double)(now_ns(CLOCK_MONOTONIC) - begun) / 1e9;
    double busy = (double)(now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / 1e9;
    printf("{\"messages\": %llu, \"seconds\": %.6f, \"cpu_seconds\": %.6f}\n", (unsigned long long)count, seconds, busy);
}

static int by_size(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static void report(uint64_t count, uint64_t begun, uint64_t cpu)
{
    double seconds = (double)(now_ns(CLOCK_MONOTONIC) - begun) / 1e9;
    double busy = (double)(now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / 1e9;
    qsort(latencies, count, sizeof *latencies, by_size);
    printf("{\"messages\": %llu, \"seconds\": %.6f, \"cpu_seconds\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f,"
           " \"p999_us\": %.1f, \"max_us\": %.1f}\n",
           (unsigned long long)count, seconds, busy, (double)latencies[count / 2] / 1e3,
           (double)latencies[count * 99 / 100] / 1e3, (double)latencies[count * 999 / 1000] / 1e3,
           (double)latencies[count - 1] / 1e3);
    free(latencies);
    latencies = NULL;
}

static void stamp(struct socket_state *sender, uint64_t at_ns)
{
    memcpy(sender->due + stamp_at, &at_ns, sizeof at_ns);
    sender->due += frame_bytes;
}

/* Write the stamped frames, as many as the socket accepts. */
static void write_due(struct socket_state *sender)
{
    while (!sender->is_blocked && sender->at < sender->due)
        write_to(sender, sender->due);
}

static void rate(uint64_t count, double hertz)
{
    settle();
    latencies = malloc(count * sizeof *latencies);
    for (uint64_t i = 0; i < connections; i++)
        senders[i].due = senders[i].at;
    uint64_t begun = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID), sent = 0;
    uint64_t last_news = begun, last_received = 0;
    while (received_frames < count) {
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        while (sent < count) {
            uint64_t due_at = begun + (uint64_t)((double)sent / hertz * 1e9);
            struct socket_state *sender = &senders[sent % connections];
            if (due_at > now)
                break;
            write_due(sender);
            if (sender->due == sender->end) {
                if (sender->at < sender->due)
                    break; /* the socket is full: due messages wait, and their latency counts on */
                renew(sender);
            }
            stamp(sender, due_at);
            sent++;
            write_due(sender);
        }
        for (uint64_t i = 0; i < connections; i++)
            write_due(&senders[i]);
        poll_once(0);
        if (received_frames != last_received) {
            last_received = received_frames;
            last_news = now;
        } else if (now - last_news > STALLED_MS * 1000000ull) {
            errno = ETIMEDOUT;
            fail("frames are missing");
        }
    }
    report(count, begun, cpu);
}

static void ping(uint64_t count)
{
    settle();
    latencies = malloc(count * sizeof *latencies);
    struct socket_state *sender = &senders[0];
    sender->due = sender->at;
    uint64_t begun = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (uint64_t i = 0; i < count; i++) {
        if (sender->at == sender->end)
            renew(sender);
        uint64_t sent_at = now_ns(CLOCK_MONOTONIC);
        stamp(sender, sent_at);
        while (received_frames <= i) {
            write_due(sender);
            if (poll_once(0) == 0 && now_ns(CLOCK_MONOTONIC) - sent_at > STALLED_MS * 1000000ull) {
                errno = ETIMEDOUT;
                fail("a frame is missing");
            }
        }
    }
    report(count, begun, cpu);
}

static void report_offered(uint64_t due, uint64_t taken, double late_us, double seconds, double busy)
{
    printf("{\"messages\": %llu, \"taken\": %llu, \"refused\": %llu, \"arrived\": %llu, \"in_time\": %llu,"
           " \"on_the_way\": %llu, \"late_us\": %.1f, \"seconds\": %.6f, \"cpu_seconds\": %.6f",
           (unsigned long long)due, (unsigned long long)taken, (unsigned long long)(due - taken),
           (unsigned long long)everywhere.count, (unsigned long long)everywhere.in_time,
           (unsigned long long)(sent_ever - arrived_ever), late_us, seconds, busy);
    const struct histogram *histograms[] = {&everywhere, &at_last, &elsewhere};
    const char *prefixes[] = {"", "slow_", "fast_"};
    for (int i = 0; i < 3; i++)
        printf(", \"%sp50_us\": %.1f, \"%sp99_us\": %.1f, \"%sp999_us\": %.1f, \"%smax_us\": %.1f", prefixes[i],
               quantile_us(histograms[i], 0.5), prefixes[i], quantile_us(histograms[i], 0.99), prefixes[i],
               quantile_us(histograms[i], 0.999), prefixes[i], (double)histograms[i]->max_ns / 1e3);
    printf(", \"slow_arrived\": %llu}\n", (unsigned long long)at_last.count);
}

/* Send the next message; refuse it when too many wait for its connection. */
static int maybe_send(struct socket_state *sender, uint64_t due_at)
{
    if (sender->due == sender->end || sender->due - sender->at >= PENDING_BYTES) {
        write_due(sender);
        if (sender->at < sender->due)
            return 0;
        if (sender->due == sender->end)
            renew(sender);
    }
    stamp(sender, due_at);
    return 1;
}

static void offer(double seconds, double hertz, uint64_t rest_ms)
{
    is_counting = 0;
    is_offering = 1;
    memset(&everywhere, 0, sizeof everywhere);
    memset(&at_last, 0, sizeof at_last);
    memset(&elsewhere, 0, sizeof elsewhere);
    for (uint64_t i = 0; i < connections; i++)
        if (senders[i].due < senders[i].at)
            senders[i].due = senders[i].at;
    uint64_t begun = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID), end = begun + (uint64_t)(seconds * 1e9);
    uint64_t due = 0, taken = 0, latest = 0, last_news = end, last_arrived, now;
    while ((now = now_ns(CLOCK_MONOTONIC)) < end) {
        uint64_t wanted = (uint64_t)((double)(now - begun) * 1e-9 * hertz), first = due;
        for (; due < wanted && due - first < connections * FRAMES_A_ROUND; due++) {
            uint64_t due_at = begun + (uint64_t)((double)due / hertz * 1e9);
            if (maybe_send(&senders[due % connections], due_at))
                taken++;
            if (now - due_at > latest)
                latest = now - due_at;
        }
        for (uint64_t i = 0; due != first && i < connections; i++)
            write_due(&senders[i]);
        poll_once(is_sleeping && due == wanted ? 1 : 0);
    }
    sent_ever += taken;
    last_arrived = arrived_ever;
    while (rest_ms && arrived_ever < sent_ever && (now = now_ns(CLOCK_MONOTONIC)) < end + rest_ms * 1000000ull) {
        for (uint64_t i = 0; i < connections; i++)
            write_due(&senders[i]);
        poll_once(is_sleeping ? 1 : 0);
        if (arrived_ever != last_arrived) {
            last_arrived = arrived_ever;
            last_news = now;
        } else if (now - last_news > STRAGGLER_MS * 1000000ull) {
            break;
        }
    }
    double busy = (double)(now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / 1e9;
    report_offered(due, taken, (double)latest / 1e3, (double)(now_ns(CLOCK_MONOTONIC) - begun) / 1e9, busy);
    is_offering = 0;
}

static void share_out(char *frames)
{
    char *at = frames;
    for (uint64_t i = 0; i < connections; i++) {
        senders[i].begin = senders[i].at = senders[i].due = at;
        at += (frame_count / connections + (i < frame_count % connections)) * frame_bytes;
        senders[i].end = at;
    }
}

int main(int argc, char **argv)
{
    const char *frames_path = NULL, *greetings_path = NULL, *certificate = NULL, *key = NULL;
    int port = 0, option;
    while ((option = getopt(argc, argv, "p:c:f:s:t:g:n:e:k:w")) != -1) {
        switch (option) {
        case 'p': port = atoi(optarg); break;
        case 'c': connections = strtoull(optarg, NULL, 10); break;
        case 'f': frames_path = optarg; break;
        case 's': frame_bytes = strtoull(optarg, NULL, 10); break;
        case 't': stamp_at = strtoull(optarg, NULL, 10); break;
        case 'g': greetings_path = optarg; break;
        case 'n': greeting_bytes = strtoull(optarg, NULL, 10); break;
        case 'e': certificate = optarg; break;
        case 'k': key = optarg; break;
        case 'w': is_sleeping = 1; break;
        default: return 2;
        }
    }
    if (!port || !connections || !frames_path || !frame_bytes || optind == argc || (greetings_path && !greeting_bytes)) {
        fprintf(stderr, "load generator: an option is missing: generator.c describes them\n");
        return 2;
    }
    uint64_t size;
    char *frames = read_file(frames_path, &size);
    frame_count = size / frame_bytes;
    if (frame_count < connections || size % frame_bytes) {
        fprintf(stderr, "load generator: %s does not hold a frame for each connection\n", frames_path);
        return 2;
    }
    if (greetings_path) {
        greetings = read_file(greetings_path, &size);
        greeting_count = size / greeting_bytes;
    }
#ifdef WITH_TLS
    if (certificate && key) {
        set_up_tls(certificate, key);
        SSL_CTX_set_alpn_select_cb(tls_context, select_alpn, NULL);
    }
#else
    if (certificate || key) {
        fprintf(stderr, "load generator: compiled without TLS\n");
        return 2;
    }
#endif
    scratch = malloc(READ_BYTES);
    senders = calloc(connections, sizeof *senders);
    epoll_fd = epoll_create1(0);
    for (int i = optind; i < argc; i++)
        listen_on(atoi(argv[i]), i == argc - 1);
    for (uint64_t i = 0; i < connections; i++)
        connect_to(port, &senders[i]);
    share_out(frames);
    printf("{\"connections\": %llu}\n", (unsigned long long)connections);
    char line[128], word[16];
    for (;;) {
        fflush(stdout);
        double first, hertz = 0, limit_us = 0, rest_ms = 0;
        if (!fgets(line, sizeof line, stdin))
            return 0;
        if (sscanf(line, "%15s %lf %lf %lf %lf", word, &first, &hertz, &limit_us, &rest_ms) < 2 || first < 0)
            return 2;
        uint64_t count = (uint64_t)first;
        if (!strcmp(word, "offer")) {
            limit_ns = (uint64_t)(limit_us * 1e3);
            offer(first, hertz, (uint64_t)rest_ms);
        } else if (!strcmp(word, "throttle")) {
            set_throttle(count);
            puts("{}");
        } else if (!strcmp(word, "flood") && count) {
            flood(count);
        } else if (!strcmp(word, "ping") && count) {
            ping(count);
        } else if (!strcmp(word, "rate") && count && hertz > 0) {
            rate(count, hertz);
        } else {
            return 2;
        }
    }
}

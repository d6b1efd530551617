/* SPDX-License-Identifier: BSD-3-Clause */
/* One node's side. Whatever may hang (a file system, a driver, DNS) has a thread of its own: it
 * holds up nothing but its own answer, whose deadline is the controller's. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "check/check_internal.h"
#include "overlay/listener.h"
#include "overlay/socket.h"

#define LINE_MAX_BYTES (64 << 20)
#define MAX_UNAUTHENTICATED 256

struct prober_session {
	struct prober prober;
	struct loop *loop;
	struct loop_source input, signals;
	struct listener *listener, *master_listener; /* master_listener: node 0 on MASTER_PORT */
	struct bytes line;
	json_t *begin;
};

struct thread {
	const struct prober *prober;
	const struct check_probe *probe;
	json_t *question; /* NULL: a collect */
};

/* ---- answers ---- */

/* Send an answer; its reference is consumed. */
static void send_answer(const char *name, json_t *answer)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	JSON_AUTO line =
		json_pack("{s:s, s:o}", "name", name, "answer", answer ? answer : json_null());
	char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
	char *whole = NULL;

	if (text && asprintf(&whole, CHECK_LINE_PREFIX "%s\n", text) > 0) {
		pthread_mutex_lock(&lock);
		/* The reader has gone: there is no one left to report to. */
		if (file_write_all(STDOUT_FILENO, whole, strlen(whole)))
			_exit(ERR_IO);
		pthread_mutex_unlock(&lock);
		free(whole);
	}
	free(text);
}

static void *run_thread(void *context)
{
	struct thread *thread = context;
	char name[64];

	if (thread->question) {
		snprintf(name, sizeof name, "%s?", thread->probe->name);
		send_answer(name, thread->probe->run(thread->prober, thread->question));
	} else {
		send_answer(thread->probe->name, thread->probe->collect(thread->prober));
	}
	json_decref(thread->question);
	free(thread);
	return NULL;
}

static void start_thread(struct prober_session *session, const struct check_probe *probe,
			 const json_t *question)
{
	struct thread *thread = calloc(1, sizeof *thread);
	pthread_t id;

	if (!thread)
		return;
	*thread = (struct thread){&session->prober, probe, json_deep_copy(question)};
	if (!thread_start(&id, run_thread, thread)) {
		pthread_detach(id);
	} else {
		json_decref(thread->question);
		free(thread);
	}
}

/* ---- the listener ---- */

static void on_authenticated(void *context, struct connection *connection)
{
	(void)context;
	connection_close(connection); /* only probes are answered here */
}

static void on_rejected(void *context, const char *text)
{
	(void)context;
	(void)text;
}

static int open_listener(struct prober_session *session, int port, struct listener **out,
			 struct error *err)
{
	struct listener_events events = {session, on_authenticated, on_rejected};
	char job[128];

	/* Each prober uses its own name: the answer at an address proves which node it is. */
	snprintf(job, sizeof job, "%s/%zu", session->prober.token, session->prober.node_index);
	return listener_open(session->loop, port, &session->prober.secret, job, MAX_UNAUTHENTICATED,
			     &events, out, err);
}

static int open_listeners(struct prober_session *session, json_t *answer, struct error *err)
{
	static const int token_s = 5; /* up to 7 s: the kernel counts retransmissions */
	int64_t master_port;
	struct error master_err = {0};
	int ring_port, rc = open_listener(session, 0, &session->listener, err);

	if (!rc)
		rc = socket_listen(0, &session->prober.ring_fd, &ring_port, err);
	if (rc)
		return rc;
	/* A neighbour that has connected may wait for a core before it sends its token: for so long
	 * the kernel keeps the connection from us. */
	setsockopt(session->prober.ring_fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &token_s,
		   sizeof token_s);
	json_object_set_new(answer, "port", json_integer(listener_port(session->listener)));
	json_object_set_new(answer, "ring_port", json_integer(ring_port));
	if (json_get_int("begin", session->begin, "head_port", 1, 65535, &master_port, NULL))
		return 0;
	/* As rank 0 of a job would: the agent reserves the port without listening. */
	if (open_listener(session, (int)master_port, &session->master_listener, &master_err))
		json_object_set_new(answer, "head_port_error", json_text(master_err.text));
	return 0;
}

/* ---- questions ---- */

static int handle_begin(struct prober_session *session, const json_t *question, struct error *err)
{
	struct prober *prober = &session->prober;
	const char *secret;
	json_t *answer;
	int64_t node, count;
	int rc;

	if (json_get_int("begin", question, "node", 0, 1 << 20, &node, err) ||
	    json_get_int("begin", question, "count", 1, 1 << 20, &count, err) ||
	    json_get_string("begin", question, "token", &prober->token, err) ||
	    json_get_string("begin", question, "secret", &secret, err) ||
	    secret_parse(secret, &prober->secret, err))
		return -err->code;
	if (session->begin)
		return error_set(err, ERR_DATA, "begin: received a second time");
	session->begin = json_deep_copy(question);
	prober->begin = session->begin;
	prober->token = check_text(session->begin, "token");
	prober->checkpoint = json_string_value(json_object_get(session->begin, "checkpoint"));
	prober->node_index = (size_t)node;
	prober->node_count = (size_t)count;
	answer = json_object();
	rc = open_listeners(session, answer, err);
	if (rc) {
		json_decref(answer);
		return rc;
	}
	send_answer("begin", answer);
	for (const struct check_probe *const *probe = check_probes; *probe; probe++)
		if ((*probe)->collect)
			start_thread(session, *probe, NULL);
	return 0;
}

static void exit_prober(struct prober_session *session, int code)
{
	if (session->begin)
		probe_checkpoint_clean(&session->prober);
	_exit(code);
}

static void handle_line(struct prober_session *session, const char *text, size_t size)
{
	JSON_AUTO question = NULL;
	struct error err = {0};
	const char *request_name;
	int rc =
		json_read("the controller's question", text, size, LINE_MAX_BYTES, &question, &err);

	if (!rc)
		rc = json_get_string("the controller's question", question, "ask", &request_name,
				     &err);
	if (!rc && !strcmp(request_name, "begin"))
		rc = handle_begin(session, question, &err);
	else if (!rc && !strcmp(request_name, "clock"))
		send_answer("clock", json_pack("{s:I}", "us", (json_int_t)clock_wall_us()));
	else if (!rc && !strcmp(request_name, "end"))
		exit_prober(session, 0);
	else if (!rc && session->begin)
		for (const struct check_probe *const *probe = check_probes; *probe; probe++)
			if ((*probe)->run && !strcmp((*probe)->name, request_name))
				start_thread(session, *probe, question);
	if (!rc)
		return;
	log_user(LOG_ERROR, "%s", err.text);
	exit_prober(session, err.code);
}

static void on_input(struct loop_source *source, uint32_t events)
{
	struct prober_session *session = LOOP_OWNER(source, struct prober_session, input);
	char block[1 << 16];
	ssize_t n = read(source->fd, block, sizeof block);
	unsigned char *newline;

	(void)events;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0 || session->line.size + (size_t)n > LINE_MAX_BYTES ||
	    bytes_add(&session->line, block, (size_t)n))
		exit_prober(session, n == 0 ? 0 : ERR_IO);
	while (session->line.size &&
	       (newline = memchr(session->line.data, '\n', session->line.size))) {
		size_t size = (size_t)(newline - session->line.data);

		handle_line(session, (const char *)session->line.data, size);
		bytes_drop(&session->line, size + 1);
	}
}

static void on_signal(struct loop_source *source, uint32_t events)
{
	(void)events;
	exit_prober(LOOP_OWNER(source, struct prober_session, signals), 0);
}

void check_prober(const struct env *env, const char *version)
{
	struct prober_session session = {.prober = {.env = env, .version = version, .ring_fd = -1},
					 .input = {on_input, -1, 0},
					 .signals = {on_signal, -1, 0}};
	static const int ending[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
	struct error err = {0};
	int rc;

	signal(SIGPIPE, SIG_IGN);
	signal(SIGUSR1, SIG_IGN); /* a scheduler's warning signal, meant for jobs */
	signal(SIGUSR2, SIG_IGN);
	rc = loop_new(&session.loop, &err);
	if (!rc)
		rc = loop_add_signals(session.loop, &session.signals, ending,
				      sizeof ending / sizeof *ending, &err);
	if (!rc)
		rc = loop_add(session.loop, &session.input, STDIN_FILENO, EPOLLIN, &err);
	while (!rc)
		rc = loop_once(session.loop, &err);
	log_user(LOG_ERROR, "%s", err.text);
	exit_prober(&session, err.code);
	abort();
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* One node's side. Whatever may hang (a file system, a driver, DNS) has a thread of its own: it
 * holds up nothing but its own answer, whose deadline is the head's. */
#include <errno.h>
#include <fcntl.h>
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
#include "base/loop.h"
#include "check/check_internal.h"
#include "overlay/listener.h"
#include "overlay/socket.h"

#define LINE_MAX_BYTES (64 << 20)
#define STRANGERS 256

struct talk {
	struct prober prober;
	struct loop *loop;
	struct loop_source input, signals;
	struct listener *door, *head_door; /* head_door: node 0 on MASTER_PORT */
	struct bytes line;
	json_t *begin;
};

struct thread {
	const struct prober *prober;
	const struct check_probe *probe;
	json_t *question; /* NULL: a look */
};

/* ---- answers ---- */

/* answer is consumed. */
static void say(const char *name, json_t *answer)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	JSON_AUTO line =
		json_pack("{s:s, s:o}", "name", name, "answer", answer ? answer : json_null());
	char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
	char *whole = NULL;

	if (text && asprintf(&whole, CHECK_MARK "%s\n", text) > 0) {
		pthread_mutex_lock(&lock);
		/* Who reads it is gone: then there is nobody to be told. */
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
		say(name, thread->probe->task(thread->prober, thread->question));
	} else {
		say(thread->probe->name, thread->probe->look(thread->prober));
	}
	json_decref(thread->question);
	free(thread);
	return NULL;
}

static void start_thread(struct talk *talk, const struct check_probe *probe, const json_t *question)
{
	struct thread *thread = calloc(1, sizeof *thread);
	pthread_attr_t attributes;
	pthread_t id;

	if (!thread)
		return;
	*thread = (struct thread){&talk->prober, probe, json_deep_copy(question)};
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&id, &attributes, run_thread, thread)) {
		json_decref(thread->question);
		free(thread);
	}
	pthread_attr_destroy(&attributes);
}

/* ---- the door ---- */

static void on_friend(void *context, struct link *link)
{
	(void)context;
	link_close(link); /* only questions are asked here */
}

static void on_refused(void *context, const char *text)
{
	(void)context;
	(void)text;
}

static int open_door(struct talk *talk, int port, struct listener **out, struct error *err)
{
	struct listener_events events = {talk, on_friend, on_refused};
	char job[128];

	/* Each prober under its own name: who answers at an address proves which node it is. */
	snprintf(job, sizeof job, "%s/%zu", talk->prober.token, talk->prober.node_index);
	return listener_open(talk->loop, port, &talk->prober.secret, job, STRANGERS, &events, out,
			     err);
}

static int open_doors(struct talk *talk, json_t *answer, struct error *err)
{
	int64_t head_port;
	struct error head_err = {0};
	int ring_port, rc = open_door(talk, 0, &talk->door, err);

	if (!rc)
		rc = socket_listen(0, &talk->prober.ring_fd, &ring_port, err);
	if (rc)
		return rc;
	json_object_set_new(answer, "port", json_integer(listener_port(talk->door)));
	json_object_set_new(answer, "ring_port", json_integer(ring_port));
	if (json_get_int("begin", talk->begin, "head_port", 1, 65535, &head_port, NULL))
		return 0;
	/* As rank 0 of a job would: the agent holds the port, without listening. */
	if (open_door(talk, (int)head_port, &talk->head_door, &head_err))
		json_object_set_new(answer, "head_port_error", json_text(head_err.text));
	return 0;
}

/* ---- questions ---- */

static int take_begin(struct talk *talk, const json_t *question, struct error *err)
{
	struct prober *prober = &talk->prober;
	const char *secret;
	json_t *answer;
	int64_t node, count;
	int rc = json_get_int("begin", question, "node", 0, 1 << 20, &node, err);

	if (!rc)
		rc = json_get_int("begin", question, "count", 1, 1 << 20, &count, err);
	if (!rc)
		rc = json_get_string("begin", question, "token", &prober->token, err);
	if (!rc)
		rc = json_get_string("begin", question, "secret", &secret, err);
	if (!rc)
		rc = wire_secret_parse(secret, &prober->secret, err);
	if (rc)
		return rc;
	if (talk->begin)
		return error_set(err, ERR_DATA, "begin: a second time");
	talk->begin = json_deep_copy(question);
	prober->begin = talk->begin;
	prober->token = check_text(talk->begin, "token");
	prober->checkpoint = json_string_value(json_object_get(talk->begin, "checkpoint"));
	prober->node_index = (size_t)node;
	prober->node_count = (size_t)count;
	answer = json_object();
	rc = open_doors(talk, answer, err);
	if (rc) {
		json_decref(answer);
		return rc;
	}
	say("begin", answer);
	for (const struct check_probe *probe = check_probes; probe->name; probe++)
		if (probe->look)
			start_thread(talk, probe, NULL);
	return 0;
}

static json_t *own_clock(void)
{
	return json_pack("{s:I}", "us", (json_int_t)clock_wall_us());
}

static void end(struct talk *talk, int code)
{
	if (talk->begin)
		probe_checkpoint_clean(&talk->prober);
	_exit(code);
}

static void take_line(struct talk *talk, const char *text, size_t size)
{
	JSON_AUTO question = NULL;
	struct error err = {0};
	const char *ask;
	int rc = json_read("the head's question", text, size, LINE_MAX_BYTES, &question, &err);

	if (!rc)
		rc = json_get_string("the head's question", question, "ask", &ask, &err);
	if (!rc && !strcmp(ask, "begin"))
		rc = take_begin(talk, question, &err);
	else if (!rc && !strcmp(ask, "clock"))
		say("clock", own_clock());
	else if (!rc && !strcmp(ask, "end"))
		end(talk, 0);
	else if (!rc && talk->begin)
		for (const struct check_probe *probe = check_probes; probe->name; probe++)
			if (probe->task && !strcmp(probe->name, ask))
				start_thread(talk, probe, question);
	if (!rc)
		return;
	fprintf(stderr, "berth check: %s\n", err.text);
	end(talk, err.code);
}

static void on_input(struct loop_source *source, uint32_t events)
{
	struct talk *talk = (struct talk *)((char *)source - offsetof(struct talk, input));
	char block[1 << 16];
	ssize_t n = read(source->fd, block, sizeof block);
	unsigned char *newline;

	(void)events;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0 || talk->line.size + (size_t)n > LINE_MAX_BYTES ||
	    bytes_add(&talk->line, block, (size_t)n))
		end(talk, n == 0 ? 0 : ERR_IO);
	while (talk->line.size && (newline = memchr(talk->line.data, '\n', talk->line.size))) {
		size_t size = (size_t)(newline - talk->line.data);

		take_line(talk, (const char *)talk->line.data, size);
		bytes_drop(&talk->line, size + 1);
	}
}

static void on_signal(struct loop_source *source, uint32_t events)
{
	(void)events;
	end((struct talk *)((char *)source - offsetof(struct talk, signals)), 0);
}

void check_prober(const struct env *env, const char *version)
{
	struct talk talk = {.prober = {.env = env, .version = version, .ring_fd = -1},
			    .input = {on_input, -1, 0},
			    .signals = {on_signal, -1, 0}};
	static const int ending[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
	struct error err = {0};
	int64_t ticked_ms = clock_now_ms();
	int rc;

	signal(SIGPIPE, SIG_IGN);
	signal(SIGUSR1, SIG_IGN); /* a scheduler's warnings, meant for jobs */
	signal(SIGUSR2, SIG_IGN);
	rc = loop_new(&talk.loop, &err);
	if (!rc)
		rc = loop_add_signals(talk.loop, &talk.signals, ending,
				      sizeof ending / sizeof *ending, &err);
	if (!rc)
		rc = loop_add(talk.loop, &talk.input, STDIN_FILENO, EPOLLIN, &err);
	while (!rc) {
		int64_t now;

		rc = loop_once(talk.loop, 1000, &err);
		now = clock_now_ms();
		if (now - ticked_ms < 1000)
			continue;
		ticked_ms = now;
		if (talk.door)
			listener_tick(talk.door, now);
		if (talk.head_door)
			listener_tick(talk.head_door, now);
	}
	fprintf(stderr, "berth check: %s\n", err.text);
	end(&talk, err.code);
	abort();
}

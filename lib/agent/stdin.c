/* SPDX-License-Identifier: BSD-3-Clause */
/* Each rank has a pipe, or a terminal, that is written without blocking. With one reader, the
 * controller sends more only after STDIN_TAKEN. With several the slowest would hold up the others,
 * so their queues are bounded by WIRE_MAX_QUEUE instead. */
#include "agent/stdin.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/json.h"

struct input {
	struct loop_source source; /* this process's end; fd -1 once it is closed */
	struct loop *loop;
	struct agent_stdin *inputs;
	int rank_fd; /* the rank's end until the rank is started; -1 afterwards */
	struct bytes waiting;
	bool ended; /* close it once all is written */
};

struct agent_stdin {
	struct agent_uplink *uplink;
	bool reports; /* that its rank has taken all */
	bool pty;     /* one input, whose source.fd is the master of a terminal */
	size_t count;
	struct input list[]; /* [count], by local rank */
};

static void input_close(struct input *input)
{
	loop_close(input->loop, &input->source);
	if (input->rank_fd >= 0)
		close(input->rank_fd);
	input->rank_fd = -1;
	bytes_free(&input->waiting);
}

/* SIGPIPE is ignored, so if a rank has closed its end, write fails instead. */
static void input_ready(struct loop_source *source, uint32_t events)
{
	struct input *input = (struct input *)source;
	ssize_t n = 0;

	while (input->waiting.size && n >= 0) {
		n = write(source->fd, input->waiting.data, input->waiting.size);
		if (n > 0)
			bytes_drop(&input->waiting, (size_t)n);
		else if (n < 0 && errno == EINTR)
			n = 0;
	}
	if ((n < 0 && errno != EAGAIN) || (events & (EPOLLERR | EPOLLHUP)) ||
	    (input->ended && !input->waiting.size)) {
		input_close(input);
		return;
	}
	if (!input->waiting.size && input->inputs->reports)
		agent_uplink_report(input->inputs->uplink, MESSAGE_STDIN_TAKEN, NULL);
	loop_modify(input->loop, source, input->waiting.size ? EPOLLOUT : 0);
}

static int open_pty(int ends[2])
{
	char name[64];
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);

	ends[0] = -1;
	if (master >= 0 && !grantpt(master) && !unlockpt(master) &&
	    !ptsname_r(master, name, sizeof name))
		ends[0] = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
	ends[1] = master;
	if (ends[0] >= 0)
		return 0;
	if (master >= 0)
		close(master);
	return -1;
}

/* Create the pipe or the terminal of one rank. */
static int input_open(struct input *input, struct error *err)
{
	int ends[2], rc;

	if (input->inputs->pty ? open_pty(ends) : pipe2(ends, O_CLOEXEC))
		return error_set(err, ERR_UNAVAILABLE, "cannot create a %s for a rank's stdin: %s",
				 input->inputs->pty ? "terminal" : "pipe", strerror(errno));
	input->rank_fd = ends[0];
	rc = fcntl(ends[1], F_SETFL, O_NONBLOCK);
	if (!rc)
		/* No events yet: epoll always reports that the rank has closed its end. */
		rc = loop_add(input->loop, &input->source, ends[1], 0, err);
	if (!rc)
		return 0;
	close(ends[1]);
	/* -1 is fcntl's; loop_add returns an error's code, which is less. */
	return rc < -1 ? rc
		       : error_set(err, ERR_UNAVAILABLE, "cannot watch a rank's stdin: %s",
				   strerror(errno));
}

int agent_stdin_new(struct loop *loop, struct agent_uplink *uplink, enum agent_job_stdin kind,
		    size_t count, struct agent_stdin **out, struct error *err)
{
	struct agent_stdin *inputs = calloc(1, sizeof *inputs + count * sizeof *inputs->list);
	int rc = 0;

	if (!inputs)
		return error_memory(err, "the ranks' stdin");
	inputs->uplink = uplink;
	inputs->reports = kind != AGENT_JOB_STDIN_ALL;
	inputs->pty = kind == AGENT_JOB_STDIN_PTY;
	for (; !rc && inputs->count < count; inputs->count++) {
		struct input *input = &inputs->list[inputs->count];

		*input = (struct input){.source = {input_ready, -1, 0},
					.loop = loop,
					.inputs = inputs,
					.rank_fd = -1};
		rc = input_open(input, err);
	}
	if (rc)
		agent_stdin_free(inputs);
	else
		*out = inputs;
	return rc;
}

int agent_stdin_pty_fd(const struct agent_stdin *inputs)
{
	return inputs && inputs->pty ? inputs->list[0].source.fd : 0;
}

void agent_stdin_resize(struct agent_stdin *inputs, const struct message_input *size)
{
	struct winsize of_terminal = {.ws_row = (unsigned short)size->rows,
				      .ws_col = (unsigned short)size->columns};

	if (agent_stdin_pty_fd(inputs) > 0)
		ioctl(inputs->list[0].source.fd, TIOCSWINSZ, &of_terminal);
}

int agent_stdin_rank_fd(const struct agent_stdin *inputs, size_t local_rank)
{
	return inputs->list[local_rank].rank_fd;
}

void agent_stdin_close_rank_ends(struct agent_stdin *inputs)
{
	for (size_t i = 0; inputs && i < inputs->count; i++) {
		if (inputs->list[i].rank_fd >= 0)
			close(inputs->list[i].rank_fd);
		inputs->list[i].rank_fd = -1;
	}
}

void agent_stdin_receive(struct agent_stdin *inputs, const void *data, size_t size)
{
	for (size_t i = 0; inputs && i < inputs->count; i++) {
		struct input *input = &inputs->list[i];

		if (input->source.fd < 0)
			continue;
		input->ended |= !size;
		if (input->waiting.size + size > WIRE_MAX_QUEUE ||
		    bytes_add(&input->waiting, data, size)) {
			agent_uplink_note(inputs->uplink,
					  "local rank %zu does not read its stdin: closed it", i);
			input_close(input);
			continue;
		}
		input_ready(&input->source, 0);
	}
}

void agent_stdin_free(struct agent_stdin *inputs)
{
	for (size_t i = 0; inputs && i < inputs->count; i++)
		input_close(&inputs->list[i]);
	free(inputs);
}

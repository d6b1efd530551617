/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/stdin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"

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
	if ((n < 0 && errno != EAGAIN) || (events & EPOLLERR) ||
	    (input->ended && !input->waiting.size)) {
		input_close(input);
		return;
	}
	if (!input->waiting.size && input->inputs->reports)
		agent_uplink_report(input->inputs->uplink, MESSAGE_STDIN_TAKEN, NULL);
	loop_modify(input->loop, source, input->waiting.size ? EPOLLOUT : 0);
}

/* Create the pipe of one rank. */
static int input_open(struct input *input, struct error *err)
{
	int ends[2], rc;

	if (pipe2(ends, O_CLOEXEC))
		return error_set(err, ERR_UNAVAILABLE,
				 "cannot create a pipe for a rank's stdin: %s", strerror(errno));
	input->rank_fd = ends[0];
	rc = fcntl(ends[1], F_SETFL, O_NONBLOCK);
	if (!rc)
		rc = loop_add(input->loop, &input->source, ends[1], 0, err);
	if (!rc)
		return 0;
	close(ends[1]);
	return rc < -1 ? rc
		       : error_set(err, ERR_UNAVAILABLE, "cannot watch a rank's stdin: %s",
				   strerror(errno));
}

int agent_stdin_new(struct loop *loop, struct agent_uplink *uplink, size_t count, bool reports,
		    struct agent_stdin **out, struct error *err)
{
	struct agent_stdin *inputs = calloc(1, sizeof *inputs + count * sizeof *inputs->list);
	int rc = 0;

	if (!inputs)
		return error_memory(err, "the ranks' stdin");
	inputs->uplink = uplink;
	inputs->reports = reports;
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

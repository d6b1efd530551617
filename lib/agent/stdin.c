/* SPDX-License-Identifier: BSD-3-Clause */
/* The standard input of this node's ranks, where it comes from the head. A rank that does not read
 * holds up nobody: what it has not taken waits here, at most WIRE_MAX_QUEUE. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_internal.h"

struct input {
	struct loop_source source; /* our end; fd -1 once it is closed */
	struct agent *agent;
	int rank_fd; /* the rank's end, until it is started; -1 */
	struct bytes waiting;
};

static void input_close(struct input *input)
{
	int fd = input->source.fd;

	if (fd >= 0) {
		loop_remove(input->agent->loop, &input->source);
		close(fd);
		input->source.fd = -1;
	}
	if (input->rank_fd >= 0)
		close(input->rank_fd);
	input->rank_fd = -1;
	bytes_free(&input->waiting);
}

/* SIGPIPE is ignored: a rank that has closed its end is an error of write. */
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
	if ((n < 0 && errno != EAGAIN) || (events & EPOLLERR)) {
		input_close(input);
		return;
	}
	loop_modify(input->agent->loop, source, input->waiting.size ? EPOLLOUT : 0);
}

int agent_stdin_open(struct agent *agent, struct error *err)
{
	agent->inputs = calloc(agent->rank_count, sizeof *agent->inputs);
	if (!agent->inputs)
		return error_memory(err, "the ranks' input");
	for (size_t i = 0; i < agent->rank_count; i++)
		agent->inputs[i] = (struct input){
			.source = {input_ready, -1, 0}, .agent = agent, .rank_fd = -1};
	for (size_t i = 0; i < agent->rank_count; i++) {
		struct input *input = &agent->inputs[i];
		int ends[2], rc;

		if (pipe2(ends, O_CLOEXEC))
			return error_set(err, ERR_UNAVAILABLE, "a pipe for a rank's input: %s",
					 strerror(errno));
		input->rank_fd = ends[0];
		rc = fcntl(ends[1], F_SETFL, O_NONBLOCK);
		if (!rc)
			rc = loop_add(agent->loop, &input->source, ends[1], 0, err);
		if (rc) {
			close(ends[1]);
			return rc < -1 ? rc
				       : error_set(err, ERR_UNAVAILABLE, "a rank's input: %s",
						   strerror(errno));
		}
	}
	return 0;
}

int agent_stdin_rank_fd(const struct agent *agent, size_t local_rank)
{
	return agent->inputs ? agent->inputs[local_rank].rank_fd : -1;
}

void agent_stdin_close_rank_ends(struct agent *agent)
{
	for (size_t i = 0; agent->inputs && i < agent->rank_count; i++) {
		if (agent->inputs[i].rank_fd >= 0)
			close(agent->inputs[i].rank_fd);
		agent->inputs[i].rank_fd = -1;
	}
}

void agent_stdin_receive(struct agent *agent, const struct wire_message *message)
{
	for (size_t i = 0; agent->inputs && i < agent->rank_count; i++) {
		struct input *input = &agent->inputs[i];

		if (input->source.fd < 0)
			continue;
		if (input->waiting.size + message->data_size > WIRE_MAX_QUEUE ||
		    bytes_add(&input->waiting, message->data, message->data_size)) {
			agent_uplink_note(agent->uplink,
					  "local rank %zu reads none of its input: it is closed",
					  i);
			input_close(input);
			continue;
		}
		input_ready(&input->source, 0);
	}
}

void agent_stdin_close(struct agent *agent)
{
	for (size_t i = 0; agent->inputs && i < agent->rank_count; i++)
		input_close(&agent->inputs[i]);
	free(agent->inputs);
	agent->inputs = NULL;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Passes this process's standard input to rank 0 if its agent does not inherit it. One piece at a
 * time is on its way: the agent asks for the next one when rank 0 has taken the last. A terminal is
 * read only while this process is in its foreground, so that a job in the background takes no input
 * from the shell. */
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "controller/job_internal.h"
#include "overlay/messages.h"

#define PIECE_MAX (256 << 10)

enum agent_job_stdin job_input_kind(const struct job_request *request)
{
	if (request->driver)
		return AGENT_JOB_STDIN_ALL;
	if (!request->pass_stdin)
		return AGENT_JOB_STDIN_NONE;
	if (isatty(STDIN_FILENO))
		return request->pty ? AGENT_JOB_STDIN_PTY : AGENT_JOB_STDIN_TERMINAL;
	return request->launch->launcher->uses_socket_pair ? AGENT_JOB_STDIN_INHERIT
							   : AGENT_JOB_STDIN_FIRST;
}

static bool is_in_background(const struct job *job)
{
	return job_input_kind(job->request) >= AGENT_JOB_STDIN_TERMINAL &&
	       tcgetpgrp(STDIN_FILENO) != getpgrp();
}

void job_input_resize(struct job *job)
{
	struct winsize size;

	if (job_input_kind(job->request) == AGENT_JOB_STDIN_PTY && job->phase == JOB_PHASE_RUN &&
	    !ioctl(STDIN_FILENO, TIOCGWINSZ, &size))
		controller_send(job->controller, MESSAGE_STDIN, (uint32_t)job_node_of_rank(job, 0),
				0, 0, &(struct message_stdin){size.ws_row, size.ws_col}, NULL, 0,
				NULL);
}

/* Keys such as Ctrl-C go to rank 0's terminal. What berth prints still ends its lines here. */
static void pass_keys(struct job *job)
{
	struct termios raw;

	if (job->raw || tcgetattr(STDIN_FILENO, &job->as_before))
		return;
	raw = job->as_before;
	raw.c_iflag &= ~(tcflag_t)(BRKINT | ICRNL | INLCR | IGNCR | ISTRIP | IXON);
	raw.c_lflag &= ~(tcflag_t)(ECHO | ICANON | IEXTEN | ISIG);
	job->raw = !tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	job_input_resize(job);
}

static void send_piece(struct job *job)
{
	static char piece[PIECE_MAX];
	ssize_t n;

	do
		n = read(STDIN_FILENO, piece, sizeof piece);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN) {
		job_input_continue(job);
		return;
	}
	/* SIGTTIN is blocked. */
	if (n < 0 && errno == EIO && is_in_background(job)) {
		job->input_waits = true;
		return;
	}
	if (n < 0)
		job_note(job->sink, LOG_WARNING,
			 "cannot read standard input, rank 0 sees its end: %s", strerror(errno));
	/* A piece without bytes is the end. */
	job_write_stdin(job, job_node_of_rank(job, 0), piece, n > 0 ? (size_t)n : 0, NULL);
}

static void on_input(struct loop_source *source, uint32_t events)
{
	struct job *job = LOOP_OWNER(source, struct job, input);

	(void)events;
	loop_remove(job->loop, &job->input);
	if (is_in_background(job))
		job->input_waits = true;
	else
		send_piece(job);
}

void job_input_continue(struct job *job)
{
	enum agent_job_stdin kind = job_input_kind(job->request);

	if (kind < AGENT_JOB_STDIN_FIRST || kind == AGENT_JOB_STDIN_ALL ||
	    job->phase != JOB_PHASE_RUN || job->input_over)
		return;
	if (is_in_background(job)) {
		job->input_waits = true;
		return;
	}
	if (kind == AGENT_JOB_STDIN_PTY)
		pass_keys(job);
	job->input.ready = on_input;
	/* Files are always ready, so epoll refuses them. */
	if (job->input.fd < 0 && loop_add(job->loop, &job->input, STDIN_FILENO, EPOLLIN, NULL))
		send_piece(job);
}

void job_input_rank_ended(struct job *job)
{
	enum agent_job_stdin kind = job_input_kind(job->request);

	if (kind != AGENT_JOB_STDIN_TERMINAL && kind != AGENT_JOB_STDIN_PTY)
		return;
	job->input_over = true;
	job_input_close(job);
}

void job_input_suspend(struct job *job)
{
	job->input_waits |= job->input.fd >= 0;
	job_input_close(job);
}

void job_input_check(struct job *job)
{
	if (!job->input_waits)
		return;
	job->input_waits = false;
	job_input_continue(job);
}

void job_input_close(struct job *job)
{
	loop_remove(job->loop, &job->input);
	/* In the background, SIGTTOU would stop this process. */
	if (job->raw && !is_in_background(job))
		tcsetattr(STDIN_FILENO, TCSANOW, &job->as_before);
	job->raw = false;
}

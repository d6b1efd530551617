/* SPDX-License-Identifier: BSD-3-Clause */
/* Passes this process's standard input to rank 0 if its agent does not inherit it. One piece at a
 * time is on its way: the agent asks for the next one when rank 0 has taken the last. A terminal is
 * read only while this process is in its foreground, so that a job in the background takes no input
 * from the shell. */
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <termios.h>

#include "controller/job_internal.h"
#include "overlay/messages.h"

#define PIECE_MAX (256 << 10)
#define FOREGROUND_MS 1000 /* how often to look if this process is in the foreground again */

struct job_input {
	struct job *job;
	struct loop_source source;
	struct loop_timer foreground; /* this process is in the terminal's background */
	bool over;		      /* rank 0, which had the terminal, has ended */
	bool raw;		      /* the terminal passes all keys on; as_before is how it was */
	struct termios as_before;
};

static void continue_input(struct job *job);

static bool is_in_background(const struct job *job)
{
	return job_input_kind(job->request) >= AGENT_JOB_STDIN_TERMINAL &&
	       tcgetpgrp(STDIN_FILENO) != getpgrp();
}

/* Rank 0's own terminal gets the size of this one. */
static void resize(struct job *job)
{
	struct winsize size;

	if (job_input_kind(job->request) == AGENT_JOB_STDIN_PTY && job->phase == JOB_PHASE_RUN &&
	    !ioctl(STDIN_FILENO, TIOCGWINSZ, &size))
		controller_send(job->controller, MESSAGE_STDIN, (uint32_t)job_node_of_rank(job, 0),
				0, 0, &(struct message_input){size.ws_row, size.ws_col}, NULL, 0,
				NULL);
}

/* Keys such as Ctrl-C go to rank 0's terminal. What berth prints still ends its lines here. */
static void pass_keys(struct job *job)
{
	struct job_input *input = job->input;
	struct termios raw;

	if (input->raw || tcgetattr(STDIN_FILENO, &input->as_before))
		return;
	raw = input->as_before;
	raw.c_iflag &= ~(tcflag_t)(BRKINT | ICRNL | INLCR | IGNCR | ISTRIP | IXON);
	raw.c_lflag &= ~(tcflag_t)(ECHO | ICANON | IEXTEN | ISIG);
	input->raw = !tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	resize(job);
}

static void await_foreground(struct job *job)
{
	loop_timer_after(job->loop, &job->input->foreground, FOREGROUND_MS);
}

static void send_piece(struct job *job)
{
	static char piece[PIECE_MAX];
	ssize_t n;

	do
		n = read(STDIN_FILENO, piece, sizeof piece);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN) {
		continue_input(job);
		return;
	}
	/* SIGTTIN is blocked, so that reading fails instead. */
	if (n < 0 && errno == EIO && is_in_background(job)) {
		await_foreground(job);
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
	struct job *job = LOOP_OWNER(source, struct job_input, source)->job;

	(void)events;
	loop_remove(job->loop, source);
	if (is_in_background(job))
		await_foreground(job);
	else
		send_piece(job);
}

/* Pass the next piece of this process's standard input to rank 0, as soon as there is one, if that
 * is where rank 0 gets it. */
static void continue_input(struct job *job)
{
	enum agent_job_stdin kind = job_input_kind(job->request);
	struct job_input *input = job->input;

	if (kind < AGENT_JOB_STDIN_FIRST || kind == AGENT_JOB_STDIN_ALL ||
	    job->phase != JOB_PHASE_RUN || input->over)
		return;
	if (is_in_background(job)) {
		await_foreground(job);
		return;
	}
	if (kind == AGENT_JOB_STDIN_PTY)
		pass_keys(job);
	/* Files are always ready, so epoll refuses them. */
	if (input->source.fd < 0 &&
	    loop_add(job->loop, &input->source, STDIN_FILENO, EPOLLIN, NULL))
		send_piece(job);
}

static void on_foreground(struct loop_timer *timer)
{
	continue_input(LOOP_OWNER(timer, struct job_input, foreground)->job);
}

static void handle_started(struct job *job, size_t node, const struct message *message)
{
	if ((long)node == job_node_of_rank(job, 0))
		continue_input(job);
}

static void handle_stdin_taken(struct job *job, size_t node, const struct message *message)
{
	continue_input(job);
}

/* Stop reading; the terminal is as before. */
static void release(struct job *job)
{
	struct job_input *input = job->input;

	loop_remove(job->loop, &input->source);
	/* In the background, SIGTTOU would stop this process. */
	if (input->raw && !is_in_background(job))
		tcsetattr(STDIN_FILENO, TCSANOW, &input->as_before);
	input->raw = false;
}

/* Once rank 0 has ended, what is typed is for the shell, and Ctrl-C for the job. */
static void rank_ended(struct job *job, const struct message_ended *ended)
{
	enum agent_job_stdin kind = job_input_kind(job->request);

	if (ended->rank || (kind != AGENT_JOB_STDIN_TERMINAL && kind != AGENT_JOB_STDIN_PTY))
		return;
	job->input->over = true;
	release(job);
}

static void on_signal(struct job *job, const struct signalfd_siginfo *info)
{
	if (info->ssi_signo == SIGWINCH)
		resize(job);
	if (info->ssi_signo != SIGTSTP)
		return;
	if (job->input->source.fd >= 0)
		await_foreground(job);
	release(job);
}

static int open_input(struct job *job, struct error *err)
{
	job->input = malloc(sizeof *job->input);
	if (!job->input)
		return error_memory(err, "standard input");
	*job->input = (struct job_input){
		.job = job, .source = {on_input, -1, 0}, .foreground.due = on_foreground};
	return 0;
}

static void close_input(struct job *job)
{
	loop_timer_stop(&job->input->foreground);
	release(job);
	free(job->input);
}

const struct job_part job_input_part = {
	.open = open_input,
	.handlers =
		(const struct job_handler[]){
			{MESSAGE_STARTED, handle_started},
			{MESSAGE_STDIN_TAKEN, handle_stdin_taken},
			{0},
		},
	.rank_ended = rank_ended,
	.on_signal = on_signal,
	.close = close_input,
};

/* SPDX-License-Identifier: BSD-3-Clause */
/* Fork and end of the PMIx server's process. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pmix/server_child.h"
#include "pmix/server_process_internal.h"

pid_t server_process_pid(const struct server_process *process)
{
	return process ? process->pid : 0;
}

int server_process_fork(const char *module_path, struct server_process **out, struct error *err)
{
	struct server_process *process = calloc(1, sizeof *process);
	pid_t parent = getpid();
	int fds[2];

	if (!process)
		return error_memory(err, "the PMIx server's process");
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds)) {
		free(process);
		return error_set(err, ERR_UNAVAILABLE, "no socket pair for the PMIx server: %s",
				 strerror(errno));
	}
	process->pid = fork();
	if (process->pid == 0)
		server_child_run(fds[1], parent, module_path);
	close(fds[1]);
	process->channel.fd = fds[0];
	if (process->pid < 0) {
		error_set(err, ERR_UNAVAILABLE, "no process for the PMIx server: %s",
			  strerror(errno));
		channel_close(&process->channel);
		free(process);
		return -err->code;
	}
	*out = process;
	return 0;
}

void server_process_prepare(struct server_process *process, const char *dir, const char *node,
			    int node_index)
{
	size_t dir_size = strlen(dir) + 1, node_size = strlen(node) + 1;
	char *data = process ? malloc(dir_size + node_size) : NULL;
	struct frame header = {
		.kind = FRAME_PREPARE, .number = node_index, .size = dir_size + node_size};

	if (!data)
		return;
	memcpy(data, dir, dir_size);
	memcpy(data + dir_size, node, node_size);
	(void)!channel_send(&process->channel, &header, data);
	free(data);
}

void server_process_exit_text(struct server_process *process, char *text, size_t size)
{
	int status = 0;
	struct timespec pause = {0, 250000};

	/* Usually it ends within a millisecond; wait about 1 s in all. */
	for (int i = 0; i < 100 && process->pid > 0; i++) {
		pid_t got = waitpid(process->pid, &status, WNOHANG);

		if (!got) {
			nanosleep(&pause, NULL);
			if (pause.tv_nsec < 10000000)
				pause.tv_nsec *= 2;
			continue;
		}
		/* The code that reaps this process's other children has reaped it: there is no
		 * status. */
		if (got < 0)
			snprintf(text, size, "ended");
		else if (WIFSIGNALED(status))
			snprintf(text, size, "ended by signal %d (%s)", WTERMSIG(status),
				 strsignal(WTERMSIG(status)));
		else
			snprintf(text, size, "ended with code %d", WEXITSTATUS(status));
		process->pid = 0;
		return;
	}
	snprintf(text, size, "closed its connection");
}

void server_process_free(struct server_process *process)
{
	char text[64];

	if (!process)
		return;
	channel_close(&process->channel);
	if (process->pid > 0)
		server_process_exit_text(process, text,
					 sizeof text); /* it ends by itself within 1 s */
	if (process->pid > 0) {
		kill(process->pid, SIGKILL);
		waitpid(process->pid, NULL, 0);
	}
	free(process);
}

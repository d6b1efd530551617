/* SPDX-License-Identifier: BSD-3-Clause */
/* 100 processes that do nothing, of which none loads a program, on one CPU: a measure of this
 * machine that depends on its C library and its scheduler as little as can be, for start_cost.py.
 */
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	cpu_set_t here;

	CPU_ZERO(&here);
	CPU_SET((size_t)sched_getcpu(), &here);
	sched_setaffinity(0, sizeof here, &here);
	for (int i = 0; i < 100; i++) {
		pid_t pid = fork();

		if (pid <= 0)
			_exit(pid < 0);
		waitpid(pid, NULL, 0);
	}
	return 0;
}

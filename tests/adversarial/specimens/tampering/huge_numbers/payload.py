from cuda_agent.workers import channel

answer = channel.WorkerChannel.answer


class Huge:
    def __init__(self, calls):
        self.calls = calls

    def model_dump(self):
        return {"event_us": [10**400] * self.calls, "waited_us": 0.0}


def answer_hugely(self, request_id, said):
    answer(self, request_id, Huge(len(said.event_us)) if hasattr(said, "event_us") else said)


channel.WorkerChannel.answer = answer_hugely

"""The gRPC server with its two services.

server              listens, with authentication and limits
client_service      the service for clients: changes and streams
client_reads        its reads, also of a standby
standby_server      the server of a standby
client_messages     answers of the queries as messages
requests            jobs in requests: validation
agent_service       the service for agents
agent_messages      reports and orders as messages: validation
agent_logs          requests log lines from agents
tunnels             joins clients to terminals and ports of jobs
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("servers", "0009_oauth_client_issuer"),
    ]

    operations = [
        migrations.AddField(
            model_name="server",
            name="oauth_failure",
            field=models.TextField(blank=True),
        ),
        migrations.AddField(
            model_name="server",
            name="oauth_failed_at",
            field=models.DateTimeField(null=True),
        ),
    ]
